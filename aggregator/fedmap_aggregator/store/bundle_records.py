"""Released bundles and their one-time download links in one transaction.

A row that names a blob is refused unless the blob is on the disk. Rows are never deleted: a withdrawn bundle
stays on the list, with its manifest, also when its file was deleted with the content of its study. What goes
into a bundle, and who may have it, is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select, update

from fedmap.errors import ConflictError, NotFoundError, StorageError
from fedmap_aggregator.store.blobs import BlobStore
from fedmap_aggregator.store.database.tables import bundles, download_links, storable
from fedmap_aggregator.store.rows import BundleRow, LinkRow


class BundleRecords:
    """Every release, in versions that count up per name."""

    def __init__(self, connection: Connection, blobs: BlobStore) -> None:
        self._connection = connection
        self._blobs = blobs

    def add(self, bundle: BundleRow) -> None:
        """A new release; ConflictError unless its version is the next one of its name."""
        expected = self.next_version(bundle.name)
        if bundle.version != expected:
            raise ConflictError(
                f"{bundle.name} has reached version {expected - 1} already",
                hint="Release again. If it goes on, look for a second aggregator on the same database.",
            )
        for digest in (bundle.file_digest, bundle.manifest_digest):
            if not self._blobs.has(digest):
                raise StorageError(
                    f"the blob {digest[:12]}… is not on the disk, so no row may name it",
                    hint="Check that the state folder is whole and its disk is mounted.",
                )
        self._connection.execute(insert(bundles).values(asdict(bundle)))

    def next_version(self, name: str) -> int:
        newest = select(func.max(bundles.c.version)).where(bundles.c.name == name)
        return (self._connection.execute(newest).scalar() or 0) + 1

    def get(self, name: str, version: int) -> BundleRow | None:
        row = self._connection.execute(
            select(bundles).where(bundles.c.name == name, bundles.c.version == version)
        ).first()
        return None if row is None else _bundle(row)

    def list(self) -> tuple[BundleRow, ...]:
        """Sorted by name, then version."""
        found = map(_bundle, self._connection.execute(select(bundles)))
        return tuple(sorted(found, key=lambda bundle: (bundle.name, bundle.version)))

    def withdraw(self, name: str, version: int, reason: str, now: int) -> bool:
        """From now on withdrawn; False where it was before, and the first reason stands."""
        changed = self._connection.execute(
            update(bundles)
            .where(
                bundles.c.name == name,
                bundles.c.version == version,
                bundles.c.withdrawn_at.is_(None),
            )
            .values(withdrawn_at=now, reason=storable(reason))
        )
        if changed.rowcount == 0 and self.get(name, version) is None:
            raise NotFoundError(
                f"no bundle is called {name}-{version}", hint="List the bundles, and check the spelling."
            )
        return changed.rowcount == 1

    def forget_file(self, name: str, version: int) -> None:
        """The row names no file any more. Only of a withdrawn bundle: nobody is to have that."""
        changed = self._connection.execute(
            update(bundles)
            .where(
                bundles.c.name == name,
                bundles.c.version == version,
                bundles.c.withdrawn_at.is_not(None),
            )
            .values(file_digest="")
        )
        if changed.rowcount == 0:
            raise ConflictError(
                f"{name}-{version} is not withdrawn, so its file stays", hint="Withdraw the bundle first."
            )


class LinkRecords:
    """One-time links, by the hashes of their tokens."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, link: LinkRow) -> None:
        self._connection.execute(insert(download_links).values(asdict(link)))

    def get(self, token_hash: str) -> LinkRow | None:
        row = self._connection.execute(
            select(download_links).where(download_links.c.token_hash == token_hash)
        ).first()
        return None if row is None else LinkRow(**row._mapping)

    def spend(self, token_hash: str, now: int) -> bool:
        """Uses a link up; True for the one caller who did."""
        changed = self._connection.execute(
            update(download_links)
            .where(download_links.c.token_hash == token_hash, download_links.c.spent_at.is_(None))
            .values(spent_at=now)
        )
        return changed.rowcount == 1


def _bundle(row: Row[Any]) -> BundleRow:
    return BundleRow(**row._mapping)
