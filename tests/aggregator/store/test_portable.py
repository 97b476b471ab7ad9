"""Rows out of a database and into another, of both kinds and of every revision, with nothing lost."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory

from fedmap.errors import ConflictError, IncompatibleError, IntegrityError
from fedmap.study.course.state import state_from_json
from fedmap_aggregator.store import BlobStore, DeletionRow, Store, schema_status
from fedmap_aggregator.store.audit_records import AuditRecords
from fedmap_aggregator.store.database import schema
from fedmap_aggregator.store.portable import Dumped, check_empty, check_revision, dump, load
from tests.aggregator.store.conftest import NOW, MakeStore, an_answer
from tests.aggregator.store.recorded_rows import SCHEMA, counts, recorded_lines

OLDER = [script.revision for script in ScriptDirectory.from_config(schema._config()).walk_revisions()][1:]


def nothing(_audit: AuditRecords) -> None:
    """No entry of its own."""


def dumped(url: str) -> tuple[list[bytes], Dumped]:
    out = io.BytesIO()
    found = dump(url, out)
    return out.getvalue().splitlines(keepends=True), found


def fill(url: str, revision: str = SCHEMA) -> list[bytes]:
    lines = recorded_lines(revision)
    load(url, revision, counts(lines), lines, nothing)
    return lines


def test_every_older_revision_is_tried() -> None:
    assert OLDER == ["0002", "0001"]


@pytest.mark.parametrize("revision", OLDER)
def test_an_older_database_with_real_rows_upgrades_and_loses_nothing(
    database_url: str, open_store: MakeStore, revision: str
) -> None:
    before = fill(database_url, revision)
    assert schema_status(database_url).found == revision
    found = open_store(database_url).prepare().schema
    assert (found.state, found.found) == ("needs upgrade", revision)
    after, status = dumped(database_url)
    assert sorted(after) == sorted(before)
    assert status.revision == schema_status(database_url).expected


def test_what_an_older_version_stored_is_read_as_it_was_meant(
    database_url: str, open_store: MakeStore
) -> None:
    fill(database_url)
    store = open_store(database_url)
    store.prepare()
    with store.reading() as transaction:
        assert transaction.audit.verify().entries == 45
        phases = {row.name: state_from_json(row.state_json).phase for row in transaction.studies.list()}
        assert phases["small-binary"] == "complete"
        assert phases["under-way"] not in ("complete", "aborted", "approvals")
        assert [row.withdrawn_at is None for row in transaction.bundles.list()] == [False, True]
        assert len(transaction.blob_names.all()) > 10
        assert transaction.deletions.unfinished() == ()


def test_a_dump_of_an_older_database_does_not_change_it(database_url: str) -> None:
    before = fill(database_url, "0001")
    lines, found = dumped(database_url)
    assert sorted(lines) == sorted(before)
    assert (found.revision, schema_status(database_url).found) == ("0001", "0001")


def test_rows_of_sqlite_can_be_moved_to_postgresql_and_back(
    sqlite_url: str, postgres_url: str, tmp_path: Path
) -> None:
    fill(sqlite_url)
    lines, found = dumped(sqlite_url)
    load(postgres_url, found.revision, found.tables, lines, nothing)
    there, moved = dumped(postgres_url)
    assert (there, moved.tables, moved.blobs, moved.head) == (lines, found.tables, found.blobs, found.head)
    back = f"sqlite:///{tmp_path / 'back.db'}"
    load(back, moved.revision, moved.tables, there, nothing)
    assert dumped(back)[0] == lines


def test_after_loading_new_rows_get_new_numbers(database_url: str, open_store: MakeStore) -> None:
    fill(database_url)
    store = open_store(database_url)
    store.prepare()
    with store.transaction() as transaction:
        transaction.studies.insert("stroke", "{}", "0" * 64, "{}")
        transaction.answers.put(an_answer())
        transaction.audit.append("local", "test", "stroke", {}, NOW)
        assert transaction.audit.verify().entries == 46


def test_a_database_that_was_never_started_is_an_empty_dump(database_url: str) -> None:
    lines, found = dumped(database_url)
    assert (lines, found.revision, found.tables) == ([], "", {})


def test_rows_are_never_loaded_over_others(database_url: str) -> None:
    check_empty(database_url)
    fill(database_url)
    with pytest.raises(ConflictError, match="holds the state of an aggregator already"):
        check_empty(database_url)


@pytest.mark.parametrize(
    "line",
    [
        b"not json\n",
        b'["answers"]\n',
        b'["nobody", {}]\n',
        b'["sites", {"name": "x"}]\n',
        b'["sites", {"name": {"base64": "*"}}]\n',
    ],
)
def test_a_row_that_cannot_be_one_is_refused_and_nothing_is_loaded(database_url: str, line: bytes) -> None:
    lines = [*recorded_lines(), line]
    with pytest.raises(IntegrityError, match="cannot be read"):
        load(database_url, SCHEMA, counts(recorded_lines()), lines, nothing)
    assert schema_status(database_url).state == "missing"


def test_rows_that_are_missing_are_noticed(database_url: str) -> None:
    lines = recorded_lines()
    with pytest.raises(IntegrityError, match="not those that it lists"):
        load(database_url, SCHEMA, counts(lines), lines[:-1], nothing)
    assert schema_status(database_url).state == "missing"


def test_a_revision_of_newer_software_is_refused_in_words() -> None:
    check_revision("")
    check_revision(SCHEMA)
    with pytest.raises(IncompatibleError, match="newer version") as refused:
        check_revision("9999")
    assert "Install" in refused.value.hint


def test_what_is_deleted_is_overwritten_in_the_file_of_sqlite(
    sqlite_url: str, tmp_path: Path, blobs: BlobStore
) -> None:
    store = Store(sqlite_url, blobs)
    store.prepare()
    secret = b"what a site sent, in clear" * 20
    with store.transaction() as transaction:
        transaction.studies.insert("stroke", "{}", "0" * 64, "{}")
        transaction.answers.put(an_answer(content=secret))
    with store.transaction() as transaction:
        transaction.deletions.begin(DeletionRow("stroke", NOW, "kim", "{}"))
    store.close()  # the log goes into the file
    assert secret not in (tmp_path / "fedmap.db").read_bytes()
