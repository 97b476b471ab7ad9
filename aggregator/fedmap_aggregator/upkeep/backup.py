"""A backup of the whole aggregator in one file, made beside a service that goes on.

In this order, so that it is complete: (1) all rows of the database as of one moment; (2) the blobs that
those rows name, which were on the disk before the rows; (3) the other files of the state folder, private
keys included; (4) the manifest; (5) the archive is read back and verified; (6) only then it gets its name,
and the audit log an entry. Nothing is deleted meanwhile: deletions and backups take turns. Works on the
aggregator's own machine only: private keys do not travel over the operator's port.
"""

from __future__ import annotations

import io
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import IO, cast

from fedmap.errors import ConflictError, FedmapError, StorageError
from fedmap.files.digests import sha256_hex
from fedmap.files.durable import TEMPORARY, DurableWriter, read_file, storage_error
from fedmap.names import shown
from fedmap_aggregator.config import AggregatorConfig
from fedmap_aggregator.identity.release_key import release_key_path
from fedmap_aggregator.store.layout import (
    DATABASE_NAME,
    blob_folder,
    database_files,
    database_url,
    make_store,
    upkeep_lock,
)
from fedmap_aggregator.store.portable import Dumped, dump
from fedmap_aggregator.upkeep.archive import (
    CHECKSUM,
    CONFIG,
    DATABASE,
    MANIFEST,
    STATE,
    SUFFIX,
    BackupManifest,
    FileEntry,
    add_bytes,
    verify_archive,
)

_ACTOR = "local"
_KEY_MARK = b"PRIVATE KEY-----"
_PUBLIC = "pki/joining.pem"  # holds a key that everybody has
# Not state: locks, what is made anew at a start, unfinished things; blobs are taken by what the rows name.
_SKIPPED = ("lock", "upkeep.lock", "drops", "pki.partial", "blobs")


@dataclass(frozen=True)
class MadeBackup:
    """A backup that was read back whole."""

    path: Path
    size: int
    sha256: str
    manifest: BackupManifest


def make_backup(
    config: AggregatorConfig, config_file: Path, out: Path, now: datetime, *, with_keys: bool = True
) -> MadeBackup:
    """Write a backup to the file `out`, or under a name of its own into the folder `out`."""
    store = make_store(config)
    target = _target(config, out, now)
    try:
        with upkeep_lock(config), DurableWriter(target.parent) as writer:
            manifest = _write(config, config_file, writer, now, with_keys)
            writer.finish()
            if verify_archive(writer.path) != manifest:  # (5)
                raise StorageError(
                    "the backup could not be read back as it was written",
                    hint=f"Check the disk that holds {target.parent}, then try again.",
                )
            writer.commit(target)  # (6)
            if manifest.schema_revision:
                detail = {"sha256": writer.digest, "bytes": str(writer.size), "keys": str(with_keys).lower()}
                with store.transaction() as transaction:
                    transaction.audit.append(_ACTOR, "backup.make", target.name, detail, _ms(now))
            return MadeBackup(target, writer.size, writer.digest, manifest)
    finally:
        store.close()


def _target(config: AggregatorConfig, out: Path, now: datetime) -> Path:
    target = out / f"fedmap-{now.astimezone(UTC):%Y%m%d-%H%M%S}{SUFFIX}" if out.is_dir() else out
    if target.exists():
        raise ConflictError(f"{target} exists already", hint="Give --out a new file, or a folder.")
    if config.server.state.resolve() in target.resolve().parents:
        raise ConflictError(
            f"{target} would lie in the state folder itself",
            hint="Write the backup to another disk: one that is lost with the state folder is none.",
        )
    return target


def _write(
    config: AggregatorConfig, config_file: Path, writer: DurableWriter, now: datetime, with_keys: bool
) -> BackupManifest:
    files: dict[str, FileEntry] = {}
    left_out: list[str] = []
    with tarfile.open(fileobj=cast(IO[bytes], writer), mode="w|", format=tarfile.PAX_FORMAT) as archive:
        with tempfile.TemporaryFile(dir=writer.path.parent) as rows:
            dumped = dump(database_url(config), rows)  # (1)
            size = rows.tell()
            rows.seek(0)
            files[DATABASE] = add_bytes(archive, DATABASE, rows, size, 0o600)
        others = _others(config.server.state, database_files(config))
        for name, path in (*_blobs(config, dumped), *others):  # (2) (3)
            if not with_keys and _is_private(name, path):
                left_out.append(name)
                continue
            files[STATE + name] = _add_file(archive, STATE + name, path)
        if config_file.is_file():
            files[CONFIG] = _add_file(archive, CONFIG, config_file)
        manifest = BackupManifest(
            made_unix_ms=_ms(now),
            software_version=version("fedmap"),
            address=config.server.address,
            database=dumped.kind,
            schema_revision=dumped.revision,
            tables=dict(dumped.tables),
            audit_entries=dumped.head.entries,
            audit_head=dumped.head.hash,
            with_keys=with_keys,
            left_out=tuple(sorted(left_out)),
            outside=_outside(config),
            files=files,
        )
        text = manifest.model_dump_json(indent=1).encode()
        for name, data in ((MANIFEST, text), (CHECKSUM, sha256_hex(text).encode())):  # (4)
            add_bytes(archive, name, io.BytesIO(data), len(data), 0o600)
    return manifest


def _blobs(config: AggregatorConfig, dumped: Dumped) -> Iterator[tuple[str, Path]]:
    for digest in sorted(dumped.blobs):
        name = f"blobs/kept/{digest[:2]}/{digest}"
        path = config.server.state / name
        if not path.is_file():
            raise StorageError(
                f"the blob {digest[:12]}… is named in the database and is not in {blob_folder(config)}",
                hint="the state folder is not whole: check its disk; an older backup may hold the file",
            )
        yield name, path


def _others(state: Path, skipped: frozenset[Path]) -> Iterator[tuple[str, Path]]:
    """Every other file of the state folder, whatever it is: a newer version may keep more in it.

    A database is never among them: read beside SQLite it would be torn, and one that is no longer in use
    would lie where a restore puts the rows.
    """
    for path in sorted(state.rglob("*")):
        name = path.relative_to(state).as_posix()
        if name.split("/")[0] in _SKIPPED or name.startswith(DATABASE_NAME) or path.is_dir():
            continue
        if path.exists() and path.resolve() in skipped:
            continue
        if path.name.startswith(TEMPORARY):
            continue
        if path.is_symlink() or not path.is_file():
            raise StorageError(
                f"{shown(name)} in the state folder is not a plain file",
                hint="the aggregator makes no links there: look what it is, and move it away",
            )
        yield name, path


def _is_private(name: str, path: Path) -> bool:
    return name != _PUBLIC and not name.startswith("blobs/") and _KEY_MARK in read_file(path)


def _outside(config: AggregatorConfig) -> tuple[str, ...]:
    """Files that the aggregator needs and that lie elsewhere."""
    external = config.pki.external
    named = [config.database.url_file, release_key_path(config)]
    if external is not None:
        named += [external.server_certificate, external.server_key, external.client_ca]
    state = config.server.state.resolve()
    return tuple(sorted(str(path) for path in named if path and state not in path.resolve().parents))


def _add_file(archive: tarfile.TarFile, name: str, path: Path) -> FileEntry:
    try:
        with path.open("rb") as stream:
            status = path.stat()
            return add_bytes(archive, name, stream, status.st_size, stat.S_IMODE(status.st_mode))
    except FedmapError:
        raise
    except OSError as error:
        raise storage_error(error, path) from error


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
