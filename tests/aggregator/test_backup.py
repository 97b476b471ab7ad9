"""Backup and restore: all of it comes back, or nothing is touched and the fault is said."""

from __future__ import annotations

import io
import os
import shutil
import signal
import stat
import tarfile
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fedmap.errors import (
    ConflictError,
    FedmapError,
    IncompatibleError,
    IntegrityError,
    StateError,
    StorageError,
)
from fedmap.files.digests import file_sha256, sha256_hex
from fedmap.process.fault_points import VARIABLE
from fedmap.process.settings import read_config
from fedmap_aggregator.config import AggregatorConfig
from fedmap_aggregator.identity.initialise import initialise
from fedmap_aggregator.store.layout import database_url, make_store, restoring_mark, upkeep_lock
from fedmap_aggregator.store.portable import dump
from fedmap_aggregator.upkeep.archive import CHECKSUM, MANIFEST, verify_archive
from fedmap_aggregator.upkeep.backup import MadeBackup, make_backup
from fedmap_aggregator.upkeep.restore import Restored, check_backup, restore_backup
from fedmap_aggregator.wiring import Aggregator
from tests.aggregator.commands import aggregator, answered
from tests.aggregator.releases import make_finished
from tests.forked_programs import run_forked

CONFIG = '[server]\naddress = "localhost:8443"\nlisten = "127.0.0.1:0"\nstate = "state"\n'
NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_finished(tmp_path_factory.mktemp("finished"))


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """An empty folder to restore into."""
    folder = tmp_path / "new"
    folder.mkdir()
    return folder


@pytest.fixture
def home(finished: Path, tmp_path: Path) -> Path:
    """The folder of an aggregator with a finished study."""
    folder = tmp_path / "home"
    folder.mkdir()
    shutil.copytree(finished, folder / "state")
    (folder / "aggregator.toml").write_text(CONFIG)
    initialise(config_of(folder), "kim", NOW)
    return folder


def config_of(folder: Path) -> AggregatorConfig:
    return read_config(folder / "aggregator.toml", AggregatorConfig)


def backup(folder: Path, out: Path, *, with_keys: bool = True) -> MadeBackup:
    return make_backup(config_of(folder), folder / "aggregator.toml", out, NOW, with_keys=with_keys)


def restore(file: Path, folder: Path) -> Restored:
    return restore_backup(file, folder / "aggregator.toml", NOW)


def rows(folder: Path) -> list[bytes]:
    out = io.BytesIO()
    dump(database_url(config_of(folder)), out)
    return out.getvalue().splitlines()


def files(folder: Path) -> dict[str, tuple[str, int]]:
    """Digest and mode of all that is neither the database nor a lock."""
    state = folder / "state"
    found = [path for path in state.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(state)): (file_sha256(path), stat.S_IMODE(path.stat().st_mode))
        for path in found
        if not path.name.startswith("fedmap.db") and not path.name.endswith("lock")
    }


def actions(folder: Path) -> list[str]:
    store = make_store(config_of(folder))
    try:
        with store.reading() as transaction:
            transaction.audit.verify()
            return [entry.action for entry in transaction.audit.entries()]
    finally:
        store.close()


def test_a_backup_brings_everything_back(home: Path, tmp_path: Path, new: Path) -> None:
    before = rows(home)
    made = backup(home, tmp_path / "all.backup")
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o600
    restored = restore(made.path, new)
    assert restored.config_written
    assert (new / "aggregator.toml").read_text() == CONFIG
    assert files(new) == files(home)
    assert stat.S_IMODE((new / "state").stat().st_mode) == 0o700
    after = rows(new)
    assert [line for line in after if b"backup.restore" not in line] == before
    assert actions(home)[-1] == "backup.make"
    assert actions(new)[-1] == "backup.restore"
    assert made.manifest.audit_entries == sum(b'["audit"' in line for line in before)
    with Aggregator(config_of(new)) as served:
        assert served.ready() is None


def test_a_backup_of_sqlite_can_be_restored_into_postgresql(
    home: Path, tmp_path: Path, postgres_url: str, new: Path
) -> None:
    before = rows(home)
    made = backup(home, tmp_path)
    assert made.path.name.startswith("fedmap-")
    assert made.path.suffix == ".backup"
    (new / "database.url").write_text(postgres_url + "\n")
    (new / "aggregator.toml").write_text(CONFIG + '[database]\nurl_file = "database.url"\n')
    assert not restore(made.path, new).config_written
    assert [line for line in rows(new) if b"backup.restore" not in line] == before
    assert not list((new / "state").glob("fedmap.db*"))
    again = backup(new, tmp_path / "postgresql.backup")
    assert (again.manifest.database, made.manifest.database) == ("PostgreSQL", "SQLite")
    assert str(new / "database.url") in again.manifest.outside
    shutil.rmtree(new / "state")
    with pytest.raises(ConflictError, match="holds the state of an aggregator already"):
        restore(made.path, new)


def test_a_backup_beside_a_service_that_writes_is_of_one_moment(
    home: Path, tmp_path: Path, new: Path
) -> None:
    config, stop = config_of(home), threading.Event()
    store = make_store(config)

    def write() -> None:
        count = 0
        while not stop.is_set():
            digest = store.blobs.put(f"prior {count}".encode())
            with store.transaction() as transaction:
                name = f"live-{count}"
                transaction.studies.insert(name, "{}", "0" * 64, "{}")
                transaction.audit.append("kim", "test", name, {"blob": digest}, count)
            count += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        made = backup(home, tmp_path / "live.backup")
    finally:
        stop.set()
        writer.join()
        store.close()
    restore(made.path, new)
    (new / "check").mkdir()
    told = [line for line in rows(new) if b'["studies",{"name":"live-' in line]
    noted = [line for line in rows(new) if b'"action":"test"' in line]
    assert len(told) == len(noted)  # of one transaction either both or none


def test_without_keys_no_private_key_is_in_the_file_and_the_restore_says_which_are_missing(
    home: Path, tmp_path: Path, new: Path
) -> None:
    made = backup(home, tmp_path / "public.backup", with_keys=False)
    data = made.path.read_bytes()
    for name in ("pki/ca.key", "pki/server.key", "pki/operator.toml", "release/key.pem"):
        assert name in made.manifest.left_out
        secret = (home / "state" / name).read_bytes().split(b"PRIVATE KEY-----\n")[1].split(b"\n")[0]
        assert secret not in data
    aggregator(new, "restore", made.path).done("Put these in place", str(Path("pki") / "ca.key"))
    assert (new / "state" / "pki" / "joining.pem").exists()


def test_nothing_is_restored_over_another_aggregator(home: Path, tmp_path: Path) -> None:
    made = backup(home, tmp_path / "all.backup")
    before = files(home), rows(home)
    with pytest.raises(ConflictError, match="is not empty") as refused:
        restore(made.path, home)
    assert "new state folder" in refused.value.hint
    assert (files(home), rows(home)) == before


def test_a_place_for_the_backup_that_is_none_is_refused(home: Path, tmp_path: Path) -> None:
    there = tmp_path / "there.backup"
    there.write_bytes(b"")
    with pytest.raises(ConflictError, match="exists already"):
        backup(home, there)
    with pytest.raises(ConflictError, match="in the state folder itself"):
        backup(home, home / "state")
    with pytest.raises(StorageError):
        backup(home, tmp_path / "nowhere" / "x.backup")


def test_a_backup_of_a_state_folder_that_is_not_whole_is_refused(home: Path, tmp_path: Path) -> None:
    blob = next((home / "state" / "blobs" / "kept").glob("*/*"))
    blob.unlink()
    with pytest.raises(StorageError, match=f"the blob {blob.name[:12]}… is named"):
        backup(home, tmp_path / "x.backup")
    assert list(tmp_path.glob("*.backup")) == []
    assert list(tmp_path.glob(".part-*")) == []


def test_a_backup_waits_its_turn_while_something_is_deleted(home: Path, tmp_path: Path) -> None:
    with upkeep_lock(config_of(home)), pytest.raises(StorageError, match="another process"):
        backup(home, tmp_path / "x.backup")


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flipped(at: float) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        place = int(len(data) * at)
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]

    return change


def rewritten(change: Callable[[tarfile.TarFile, tarfile.TarInfo, bytes], None]) -> Callable[[bytes], bytes]:
    """The archive with its members passed through `change`."""

    def rewrite(data: bytes) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=io.BytesIO(data)) as old, tarfile.open(fileobj=out, mode="w") as new:
            for member in old:
                stream = old.extractfile(member)
                assert stream is not None
                change(new, member, stream.read())
        return out.getvalue()

    return rewrite


def put(archive: tarfile.TarFile, info: tarfile.TarInfo, data: bytes) -> None:
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


def with_other_key(archive: tarfile.TarFile, info: tarfile.TarInfo, data: bytes) -> None:
    put(archive, info, b"other" if info.name.endswith("ca.key") else data)


def without_a_blob(archive: tarfile.TarFile, info: tarfile.TarInfo, data: bytes) -> None:
    if not info.name.endswith("ca.key"):
        put(archive, info, data)


def with_a_stranger(archive: tarfile.TarFile, info: tarfile.TarInfo, data: bytes) -> None:
    if info.name == MANIFEST:
        put(archive, tarfile.TarInfo("state/extra"), b"x")
    put(archive, info, data)


def climbing(archive: tarfile.TarFile, info: tarfile.TarInfo, data: bytes) -> None:
    if info.name.endswith("ca.key"):
        info.name = "state/../../ca.key"
    put(archive, info, data)


def linking(archive: tarfile.TarFile, info: tarfile.TarInfo, data: bytes) -> None:
    put(archive, info, data)
    link = tarfile.TarInfo("state/link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    if info.name.endswith("ca.key"):
        archive.addfile(link)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut": cut,
    "bit at the start": flipped(0.1),
    "bit in the middle": flipped(0.5),
    "changed manifest": lambda data: data.replace(b'"address": "localhost', b'"address": "localhast'),
    "empty": lambda _: b"",
    "not an archive": lambda _: b"no archive at all" * 1000,
    "other key": rewritten(with_other_key),
    "missing file": rewritten(without_a_blob),
    "file not listed": rewritten(with_a_stranger),
    "path that climbs out": rewritten(climbing),
    "link": rewritten(linking),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_backup_is_refused_and_nothing_is_touched(
    home: Path, tmp_path: Path, damage: Callable[[bytes], bytes], new: Path
) -> None:
    made = backup(home, tmp_path / "all.backup")
    made.path.write_bytes(damage(made.path.read_bytes()))
    for attempt in (check_backup, lambda path: restore(path, new)):
        with pytest.raises(IntegrityError, match="cannot be used as a backup"):
            attempt(made.path)
    assert list(new.iterdir()) == []


def test_a_small_archive_is_not_read_as_gigabytes_of_zeros(tmp_path: Path) -> None:
    hole = tarfile.TarInfo("state/hole")
    hole.pax_headers = {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(3 << 30)}
    with tarfile.open(tmp_path / "small.backup", "w", format=tarfile.PAX_FORMAT) as archive:
        put(archive, hole, b"x")
    with pytest.raises(IntegrityError, match="has holes"):
        check_backup(tmp_path / "small.backup")


def manifest_with(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    changed = b""

    def change(archive: tarfile.TarFile, info: tarfile.TarInfo, data: bytes) -> None:
        nonlocal changed
        if info.name == MANIFEST:
            data = changed = data.replace(old, new)
        put(archive, info, sha256_hex(changed).encode() if info.name == CHECKSUM else data)

    return rewritten(change)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (b'"schema_revision": "0003"', b'"schema_revision": "9999"', "newer version"),
        (b'"format": 1', b'"format": 2', "another format"),
    ],
)
def test_a_backup_of_newer_software_is_refused_in_words(
    home: Path, tmp_path: Path, old: bytes, new: bytes, what: str
) -> None:
    made = backup(home, tmp_path / "all.backup")
    data = manifest_with(old, new)(made.path.read_bytes())
    made.path.write_bytes(data)
    folder = tmp_path / "new"
    folder.mkdir()
    with pytest.raises(IncompatibleError, match=what) as refused:
        restore(made.path, folder)
    assert "Install" in refused.value.hint
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("point", ["restored_files", "restored_rows"])
@pytest.mark.parametrize("outside", [False, True], ids=["database inside", "database outside"])
def test_a_restore_that_is_killed_is_not_served_and_can_be_run_again(
    home: Path, tmp_path: Path, point: str, outside: bool, new: Path
) -> None:
    before = rows(home)
    made = backup(home, tmp_path / "all.backup")
    if outside:
        (new / "aggregator.toml").write_text(
            CONFIG + f'[database]\nurl = "sqlite:///{tmp_path / "out.db"}"\n'
        )
    environment = {**os.environ, VARIABLE: f"aggregator.{point}"}
    killed = run_forked("fedmap-aggregator", ["restore", str(made.path)], environment, new)
    assert killed.returncode == -signal.SIGKILL
    assert restoring_mark(new / "state").exists()
    with pytest.raises(StateError, match="was interrupted") as refused, Aggregator(config_of(new)):
        pass
    assert "restore" in refused.value.hint
    restore(made.path, new)
    assert files(new) == files(home)
    assert not restoring_mark(new / "state").exists()
    assert actions(new).count("backup.restore") == 1
    assert [line for line in rows(new) if b"backup.restore" not in line] == before


def test_a_restore_run_again_does_not_take_the_rows_of_another_backup_for_its_own(
    home: Path, tmp_path: Path, new: Path
) -> None:
    first, second = backup(home, tmp_path / "1.backup"), backup(home, tmp_path / "2.backup")
    (new / "aggregator.toml").write_text(CONFIG + f'[database]\nurl = "sqlite:///{tmp_path / "out.db"}"\n')
    restore(first.path, new)
    restoring_mark(new / "state").touch()
    with pytest.raises(ConflictError, match="holds the state of an aggregator already"):
        restore(second.path, new)
    restore(first.path, new)
    assert files(new) == files(home)


def with_an_old_database(home: Path, live: Path) -> None:
    """The aggregator has moved to another database; the file of the old one is still there."""
    shutil.copy(home / "state" / "fedmap.db", live)
    (home / "aggregator.toml").write_text(CONFIG + f'[database]\nurl = "sqlite:///{live}"\n')
    store = make_store(config_of(home))
    with store.transaction() as transaction:
        transaction.audit.append("kim", "test.newer", "x", {}, 1)
    store.close()


def test_an_old_database_in_the_state_folder_does_not_come_back_over_the_rows(
    home: Path, tmp_path: Path, new: Path
) -> None:
    with_an_old_database(home, tmp_path / "live.db")
    made = backup(home, tmp_path / "all.backup")
    assert not [name for name in made.manifest.files if "fedmap.db" in name]
    (new / "aggregator.toml").write_text(CONFIG)
    restore(made.path, new)
    assert actions(new)[-2:] == ["test.newer", "backup.restore"]


def test_a_database_behind_a_link_is_not_copied_beside_sqlite(home: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(home / "state")
    (home / "state" / "fedmap.db").rename(home / "state" / "other.db")
    (home / "aggregator.toml").write_text(
        CONFIG + f'[database]\nurl = "sqlite:///{tmp_path / "link" / "other.db"}"\n'
    )
    made = backup(home, tmp_path / "all.backup")
    assert not [name for name in made.manifest.files if "other.db" in name]


@pytest.mark.parametrize("name", ["fedmap.db", "fedmap.db-wal", "lock", "upkeep.lock", ".restoring"])
def test_a_backup_with_a_file_where_the_restore_itself_writes_is_refused(
    home: Path, tmp_path: Path, name: str, new: Path
) -> None:
    (home / "state" / "extra-file").write_text("old")
    made = backup(home, tmp_path / "all.backup")
    old, renamed = "state/extra-file", f"state/{name}"

    def rename(archive: tarfile.TarFile, info: tarfile.TarInfo, data: bytes) -> None:
        info.name = renamed if info.name == old else info.name
        put(archive, info, data)

    data = rewritten(rename)(made.path.read_bytes())
    made.path.write_bytes(manifest_with(old.encode(), renamed.encode())(data))
    with pytest.raises(ConflictError, match="the restore itself writes there"):
        restore(made.path, new)
    assert list(new.iterdir()) == []


def test_an_aggregator_that_was_never_started_can_be_backed_up(tmp_path: Path) -> None:
    home, new = tmp_path / "home", tmp_path / "new"
    home.mkdir()
    new.mkdir()
    (home / "aggregator.toml").write_text(CONFIG)
    initialise(config_of(home), "kim", NOW)
    told = answered(home, "backup", "--out", tmp_path / "first.backup")
    assert (told["schema_revision"], told["audit_entries"]) == ("", 0)
    checked = answered(new, "restore", tmp_path / "first.backup", "--check")
    assert checked["with_keys"] is True
    assert list(new.iterdir()) == []
    restore(tmp_path / "first.backup", new)
    assert files(new) == files(home)


def test_verifying_reads_every_byte(home: Path, tmp_path: Path) -> None:
    made = backup(home, tmp_path / "all.backup")
    assert verify_archive(made.path) == made.manifest
    assert made.sha256 == file_sha256(made.path)
    with pytest.raises(FedmapError):
        verify_archive(tmp_path / "nowhere.backup")
