"""Every row of a database as lines of text, and back: the form in which a backup holds them.

One line a row, `[table, {column: value}]`, bytes in base64. It is read in one transaction that sees one
moment, beside a service that goes on writing, and needs no program of the database's own. A dump of SQLite
can be loaded into PostgreSQL and the other way round. Tables are dumped as they are found, so that an older
database is not changed by its backup; loading makes the tables of that revision first.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from sqlalchemy import Connection, MetaData, Table, func, insert, inspect, select, text

from fedmap.errors import ConflictError, IncompatibleError, IntegrityError
from fedmap.trust.audit import AuditEntry
from fedmap_aggregator.store.audit_records import AuditRecords
from fedmap_aggregator.store.blob_names import BlobNames
from fedmap_aggregator.store.database.engine import make_engine, make_private_file, reading, writing
from fedmap_aggregator.store.database.schema import is_known, revision_of, schema_status, upgrade
from fedmap_aggregator.store.database.tables import audit, metadata
from fedmap_aggregator.store.database.url import read_url
from fedmap_aggregator.store.rows import AuditHead

_AT_ONCE = 500
_BUSY_SECONDS = 60.0
_BYTES = "base64"


@dataclass(frozen=True)
class Dumped:
    """What a dump holds."""

    kind: str  # of the database, for people
    revision: str  # of the tables; empty: there are none yet
    tables: Mapping[str, int]  # rows of each
    blobs: frozenset[str]  # that the rows name
    head: AuditHead


def dump(url: str, out: BinaryIO) -> Dumped:
    """Writes all rows as of one moment; changes nothing. IncompatibleError for newer tables than ours."""
    database = read_url(url)
    kind = "SQLite" if database.is_sqlite else "PostgreSQL"
    status = schema_status(url)
    if status.state == "missing":
        return Dumped(kind, "", {}, frozenset(), AuditHead(0, ""))
    if status.state == "newer":
        raise IncompatibleError(
            f"{database.place} was made by a newer version of this software",
            hint="Make the backup with the version of fedmap that is in use.",
        )
    engine = make_engine(database, _BUSY_SECONDS)
    try:
        with reading(engine, database) as connection:
            counts = {table.name: _dump_table(connection, table, out) for table in _tables(connection)}
            newest = connection.execute(select(audit.c.hash).order_by(audit.c.seq.desc()).limit(1)).scalar()
            head = AuditHead(counts[audit.name], newest or "")
            return Dumped(kind, revision_of(connection) or "", counts, BlobNames(connection).all(), head)
    finally:
        engine.dispose()


def check_empty(url: str) -> None:
    """ConflictError where the database has tables of ours already: nothing is ever restored over them."""
    if schema_status(url).state != "missing":
        raise ConflictError(
            f"{read_url(url).place} holds the state of an aggregator already",
            hint="Restore into an empty database: drop this one only if you are sure that it is not needed.",
        )


def newest_entry(url: str) -> AuditEntry | None:
    """The end of the audit log; None where there are no tables or no entries."""
    if schema_status(url).state == "missing":
        return None
    database = read_url(url)
    engine = make_engine(database, _BUSY_SECONDS)
    try:
        with reading(engine, database) as connection:
            return AuditRecords(connection).newest()
    finally:
        engine.dispose()


def check_revision(revision: str) -> None:
    """IncompatibleError for tables that a newer version made."""
    if revision and not is_known(revision):
        raise IncompatibleError(
            f"the backup was made by a newer version of this software (its schema is {revision})",
            hint="Install the version of fedmap that made it, or a newer one, and restore again.",
        )


def load(
    url: str,
    revision: str,
    expected: Mapping[str, int],
    lines: Iterable[bytes],
    note: Callable[[AuditRecords], None],
) -> None:
    """Makes the tables and fills them, all or nothing; `note` may add to the audit log at the end."""
    database = read_url(url)
    if database.is_sqlite:
        make_private_file(database)
    engine = make_engine(database, _BUSY_SECONDS)
    try:
        with writing(engine, database) as connection:
            upgrade(connection, database, to=revision)
            counts = _fill(connection, lines)
            if {name: count for name, count in counts.items() if count} != {
                name: count for name, count in expected.items() if count
            }:
                raise IntegrityError(
                    "the rows of the backup are not those that it lists", hint="Use another backup."
                )
            if not database.is_sqlite:
                _count_on(connection)
            note(AuditRecords(connection))
    finally:
        engine.dispose()


def _tables(connection: Connection) -> list[Table]:
    """Ours that are there, each after those that it refers to, with the columns that it really has."""
    there = set(inspect(connection).get_table_names())
    found = MetaData()
    names = [table.name for table in metadata.sorted_tables if table.name in there]
    found.reflect(connection, only=names)
    return [found.tables[name] for name in names]


def _dump_table(connection: Connection, table: Table, out: BinaryIO) -> int:
    chosen = select(table).order_by(*table.primary_key.columns).execution_options(yield_per=_AT_ONCE)
    count = 0
    for row in connection.execute(chosen):
        values = {name: _shown(value) for name, value in row._mapping.items()}
        out.write(json.dumps([table.name, values], separators=(",", ":")).encode("ascii") + b"\n")
        count += 1
    return count


def _shown(value: Any) -> Any:
    if isinstance(value, bytes | memoryview):
        return {_BYTES: base64.b64encode(value).decode("ascii")}
    return value


def _read(value: Any) -> Any:
    return base64.b64decode(value[_BYTES], validate=True) if isinstance(value, dict) else value


def _fill(connection: Connection, lines: Iterable[bytes]) -> dict[str, int]:
    tables = {table.name: table for table in _tables(connection)}
    counts: dict[str, int] = {}
    batch: list[dict[str, Any]] = []
    last = ""

    def flush() -> None:
        if batch:
            connection.execute(insert(tables[last]), batch)
            counts[last] = counts.get(last, 0) + len(batch)
            batch.clear()

    for line in lines:
        try:
            name, values = json.loads(line)
            row = {column: _read(value) for column, value in values.items()}
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            raise _unreadable() from None
        if name not in tables or row.keys() != {column.name for column in tables[name].columns}:
            raise _unreadable()
        if name != last or len(batch) == _AT_ONCE:
            flush()
        last = name
        batch.append(row)
    flush()
    return counts


def _count_on(connection: Connection) -> None:
    """PostgreSQL: rows that brought their number do not move the counter that gives the next one."""
    for table in _tables(connection):
        for column in table.primary_key.columns:
            sequence = connection.scalar(
                text("SELECT pg_get_serial_sequence(:table, :column)"),
                {"table": table.name, "column": column.name},
            )
            highest = connection.scalar(select(func.max(column))) if sequence else None
            if highest is not None:
                connection.execute(select(func.setval(sequence, highest)))


def _unreadable() -> IntegrityError:
    return IntegrityError("a row of the backup cannot be read", hint="Use another backup.")
