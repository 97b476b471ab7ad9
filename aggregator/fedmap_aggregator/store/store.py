"""The aggregator's state: rows in one database, blobs in one folder, changed in transactions that last.

    with store.transaction() as transaction:
        study = transaction.studies.load("diabetes")
        transaction.studies.save("diabetes", state_json, study.version)
        transaction.audit.append("operator:kim", "start", "diabetes", {}, now)

All of a block is stored or none of it. One transaction writes at a time; readers never wait for it. No
transaction is held open over work that takes time: write the blobs first, then the rows that name them.
Nothing here knows what a study does, and no clock is read: times are handed in.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection

from fedmap_aggregator.store.audit_records import AuditRecords
from fedmap_aggregator.store.blob_names import BlobNames
from fedmap_aggregator.store.blobs import BlobStore
from fedmap_aggregator.store.bundle_records import BundleRecords, LinkRecords
from fedmap_aggregator.store.database.engine import make_engine, make_private_file, reading, writing
from fedmap_aggregator.store.database.errors import busy_error
from fedmap_aggregator.store.database.schema import SchemaStatus, upgrade
from fedmap_aggregator.store.database.url import read_url
from fedmap_aggregator.store.deletion_records import DeletionRecords
from fedmap_aggregator.store.identity_records import CertificateRecords, InvitationRecords, SiteRecords
from fedmap_aggregator.store.study_records import AnswerRecords, RefusalRecords, ResultRecords, StudyRecords

_BUSY_SECONDS = 15.0


@dataclass(frozen=True)
class Prepared:
    """What the start found."""

    schema: SchemaStatus  # before the upgrade
    leftovers: int  # half-written files that were removed


class Transaction:
    """Everything that can be read and changed together."""

    def __init__(self, connection: Connection, blobs: BlobStore) -> None:
        self.sites = SiteRecords(connection)
        self.invitations = InvitationRecords(connection)
        self.certificates = CertificateRecords(connection)
        self.studies = StudyRecords(connection)
        self.answers = AnswerRecords(connection, blobs)
        self.results = ResultRecords(connection, blobs)
        self.refusals = RefusalRecords(connection)
        self.bundles = BundleRecords(connection, blobs)
        self.links = LinkRecords(connection)
        self.deletions = DeletionRecords(connection)
        self.blob_names = BlobNames(connection)
        self.audit = AuditRecords(connection)


class Store:
    """For all threads of one process. Connects at the first use; `prepare` comes before anything else."""

    def __init__(self, url: str, blobs: BlobStore, busy_seconds: float = _BUSY_SECONDS) -> None:
        self.blobs = blobs
        self._database = read_url(url)
        self._busy_seconds = busy_seconds
        self._engine = make_engine(self._database, busy_seconds)
        # Threads of one process queue here, in memory; the database's own lock is for other processes.
        self._turn = threading.Lock()
        self._writer: int | None = None

    @property
    def place(self) -> str:
        """The database in words, without secrets."""
        return self._database.place

    def prepare(self) -> Prepared:
        """Brings the tables up to date, clears what a crash left; for who holds the state folder's lock."""
        if self._database.is_sqlite:
            make_private_file(self._database)
        with self._writing() as connection:
            found = upgrade(connection, self._database)
        return Prepared(found, self.blobs.clean())

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Reads and writes; commits at the end of the block, and changes nothing after any error."""
        with self._writing() as connection:
            yield Transaction(connection, self.blobs)

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Reads only, as of one moment; waits for nobody."""
        with reading(self._engine, self._database) as connection:
            yield Transaction(connection, self.blobs)

    def drop_unnamed(self, digests: Collection[str]) -> None:
        """Delete those of the blobs that no row names, in turns with all who write rows."""
        with self.transaction() as transaction:
            named = transaction.blob_names.all()
            self.blobs.delete(self.blobs.path(digest) for digest in digests if digest not in named)

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        if self._writer == threading.get_ident():
            raise RuntimeError("a transaction inside a transaction would wait for itself")
        if not self._turn.acquire(timeout=self._busy_seconds):
            raise busy_error(self._database)
        try:
            self._writer = threading.get_ident()
            with writing(self._engine, self._database) as connection:
                yield connection
        finally:
            self._writer = None
            self._turn.release()
