"""A backup put back: into an empty state folder and an empty database, or not at all.

(1) the whole archive is verified before anything is touched; (2) the place must be empty; (3) a mark says
that a restore is under way, and no service starts while it is there; (4) the files go in, each digested
again; (5) then the rows, with an entry in the audit log; (6) the mark goes last. After a kill the same
command clears the folder that the mark stands for and begins again; rows of this very backup that are in a
database elsewhere already are left as they are.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from fedmap.errors import ConfigError, ConflictError, IntegrityError
from fedmap.files.digests import file_sha256
from fedmap.files.durable import (
    DurableWriter,
    FolderLock,
    make_folder,
    storage_errors,
    sync_folder,
    write_durably,
)
from fedmap.process.fault_points import reach
from fedmap.process.settings import parse_config, read_config
from fedmap.trust.audit import AuditEntry
from fedmap_aggregator.config import NO_CONFIG, AggregatorConfig
from fedmap_aggregator.store import BlobStore, Store, read_url
from fedmap_aggregator.store.audit_records import AuditRecords
from fedmap_aggregator.store.layout import database_files, database_url, restoring_mark
from fedmap_aggregator.store.portable import check_empty, check_revision, load, newest_entry
from fedmap_aggregator.upkeep.archive import (
    CHECKSUM,
    CONFIG,
    DATABASE,
    MANIFEST,
    STATE,
    BackupManifest,
    Member,
    members,
    verify_archive,
)

_ACTOR = "local"
_ACTION = "backup.restore"
_LOCKS = frozenset({"lock", "upkeep.lock"})


@dataclass(frozen=True)
class Restored:
    """What was put back, and where."""

    config: AggregatorConfig
    config_written: bool
    manifest: BackupManifest


def check_backup(path: Path) -> BackupManifest:
    """Step 1 alone: the archive is whole, and of a version that this software understands."""
    manifest = verify_archive(path)
    check_revision(manifest.schema_revision)
    return manifest


def restore_backup(path: Path, config_file: Path, now: datetime) -> Restored:
    """Put a backup back where the configuration says; without one, that of the backup is put there first."""
    manifest = check_backup(path)  # (1)
    written = not config_file.exists()
    config = _config(path, config_file, manifest)
    _check_places(config, manifest)
    state = config.server.state
    make_folder(state)
    with FolderLock(state / "lock"):
        digest = file_sha256(path)
        has_rows = _make_room(config, digest)  # (2)
        if written:
            write_durably(config_file, _config_text(path), mode=0o644)
        write_durably(restoring_mark(state), b"A restore is under way, or was interrupted.\n")  # (3)
        _put_files(path, state, manifest)  # (4)
        reach("aggregator.restored_files")
        if manifest.schema_revision:
            if not has_rows:
                _put_rows(path, database_url(config), manifest, digest, now)  # (5)
            _prepare(config)
        with storage_errors(state):
            state.chmod(0o700)
            restoring_mark(state).unlink()  # (6)
            sync_folder(state)
    return Restored(config, written, manifest)


def _config(path: Path, config_file: Path, manifest: BackupManifest) -> AggregatorConfig:
    if config_file.exists():
        return read_config(config_file, AggregatorConfig)
    if CONFIG not in manifest.files:
        raise ConfigError(
            str(config_file), ("there is no such file, and the backup holds none",), hint=NO_CONFIG
        )
    text = _config_text(path).decode("utf-8", "replace")
    return parse_config(text, f"{CONFIG} of the backup", config_file.absolute().parent, AggregatorConfig)


def _config_text(path: Path) -> bytes:
    with members(path) as archive:
        for member in archive:
            if member.name == CONFIG:
                return b"".join(member.pieces())
    raise IntegrityError(f"{path.name} holds no configuration", hint="Give --config a file that exists.")


def _check_places(config: AggregatorConfig, manifest: BackupManifest) -> None:
    """No file of the backup may lie over what the restore itself writes: rows, locks, the mark."""
    state = config.server.state.resolve()
    own = {state / name for name in (*_LOCKS, restoring_mark(state).name)} | database_files(config)
    for name in manifest.files:
        target = (state / name.removeprefix(STATE)).resolve()
        if name.startswith(STATE) and not own.isdisjoint((target, *target.parents)):
            raise ConflictError(
                f"the backup holds the file {name}, and the restore itself writes there",
                hint="It may be an old database that lay beside the one in use. Let database.url in "
                "aggregator.toml name another file or PostgreSQL, and restore again.",
            )


def _make_room(config: AggregatorConfig, digest: str) -> bool:
    """An empty state folder and database; what an interrupted restore left is cleared.

    Returns whether that restore came so far that the database holds this backup's rows.
    """
    state, url = config.server.state, database_url(config)
    marked = restoring_mark(state).exists()
    with storage_errors(state):
        found = sorted(entry.name for entry in state.iterdir() if entry.name not in _LOCKS)
        if marked:
            for name in found:
                entry = state / name
                if name != restoring_mark(state).name:
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        elif found:
            raise ConflictError(
                f"{state} is not empty: it holds {', '.join(found[:3])}",
                hint="Restore into a new state folder (server.state). Nothing is ever restored over another "
                "aggregator: move its folder away first, if it is the broken one.",
            )
    if marked and _is_ours(newest_entry(url), digest):
        return True
    check_empty(url)
    return False


def _is_ours(newest: AuditEntry | None, digest: str) -> bool:
    return newest is not None and newest.action == _ACTION and newest.detail.get("sha256") == digest


def _put_files(path: Path, state: Path, manifest: BackupManifest) -> None:
    with members(path) as archive:
        for member in archive:
            if member.name.startswith(STATE) and member.name in manifest.files:
                _put(member, state / member.name.removeprefix(STATE), manifest)
            elif member.name not in (DATABASE, CONFIG, MANIFEST, CHECKSUM):
                raise _changed(member.name)


def _put_rows(path: Path, url: str, manifest: BackupManifest, digest: str, now: datetime) -> None:
    def note(audit: AuditRecords) -> None:
        detail = {"sha256": digest, "made": str(manifest.made_unix_ms), "head": manifest.audit_head}
        audit.append(_ACTOR, _ACTION, path.name, detail, int(now.timestamp() * 1000))

    with members(path) as archive:
        for member in archive:
            if member.name == DATABASE:
                load(url, manifest.schema_revision, manifest.tables, _whole(member, manifest), note)
                reach("aggregator.restored_rows")
                return
    raise _changed(DATABASE)


def _prepare(config: AggregatorConfig) -> None:
    """The tables of this version, and a database file that only its owner reads."""
    url = database_url(config)
    store = Store(url, BlobStore(config.server.state / "blobs"))
    try:
        store.prepare()
    finally:
        store.close()
    if read_url(url).is_sqlite:
        os.chmod(read_url(url).file, 0o600)


def _put(member: Member, target: Path, manifest: BackupManifest) -> None:
    make_folder(target.parent)
    with DurableWriter(target.parent, mode=manifest.files[member.name].mode) as writer:
        for piece in member.pieces():
            writer.write(piece)
        _check(member, manifest)
        writer.commit(target)


def _whole(member: Member, manifest: BackupManifest) -> Iterator[bytes]:
    """The lines; an error at their end, inside the transaction that takes them, if they have changed."""
    yield from member.lines()
    _check(member, manifest)


def _check(member: Member, manifest: BackupManifest) -> None:
    """Between the first look and this one the file may have been exchanged."""
    entry = manifest.files.get(member.name)
    if entry is None or (entry.size, entry.sha256) != (member.size, member.digest):
        raise _changed(member.name)


def _changed(name: str) -> IntegrityError:
    return IntegrityError(
        f"{name} has changed while the backup was read",
        hint="Copy the backup to a disk that nobody else writes to, and restore it again.",
    )
