"""What was released, as each caller may see it: rows, files, manifests, and the signed list of withdrawals.

A bundle that is not for a caller's tier does not exist for it. Withdrawn and expired ones are shown and not
handed out. Making bundles is `signing`; the two ways out are `handlers.bundles` and `downloads`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from pydantic import ValidationError

from fedmap.bundles.manifest import SUFFIX, Manifest, split_reference
from fedmap.bundles.withdrawals import Withdrawal, Withdrawals, write_withdrawals
from fedmap.errors import NotFoundError, StateError, StorageError
from fedmap.files.durable import read_file
from fedmap.names import shown
from fedmap_aggregator.identity.release_key import ReleaseKey
from fedmap_aggregator.store import BundleRow, Store


class BundleCatalogue:
    """Every release of this aggregator. Safe to call from any thread."""

    def __init__(self, store: Store, key: ReleaseKey, clock_ms: Callable[[], int]) -> None:
        self._store = store
        self._key = key
        self._clock_ms = clock_ms
        self._manifest = lru_cache(maxsize=64)(self._read_manifest)  # a blob never changes

    @property
    def key_fingerprint(self) -> str:
        return self._key.fingerprint

    def rows(self) -> tuple[BundleRow, ...]:
        """All releases, sorted by name and version."""
        with self._store.reading() as transaction:
            return transaction.bundles.list()

    def visible(self, tier: int) -> tuple[BundleRow, ...]:
        """What a site of this tier may know of."""
        return tuple(row for row in self.rows() if _is_for(tier, row))

    def row(self, name: str, version: int) -> BundleRow:
        """One release; NotFoundError where there is none. Names come from outside, and are checked first."""
        found = None
        if split_reference(f"{name}-{version}") == (name, version):
            with self._store.reading() as transaction:
                found = transaction.bundles.get(name, version)
        if found is None:
            raise _unknown(f"{name}-{version}")
        return found

    def fetchable(self, tier: int, name: str, version: int) -> BundleRow:
        """A release that a site of this tier may download now."""
        row = self.row(name, version)
        if not _is_for(tier, row):
            raise _unknown(f"{name}-{version}")
        self.check_stands(row)
        return row

    def check_stands(self, row: BundleRow) -> None:
        """StateError for a bundle that must not be used any more."""
        if row.withdrawn_at is not None:
            raise StateError(
                f"{row.name}-{row.version} was withdrawn: {row.reason}",
                hint="do not use it; look in the list for a newer version, or ask the operator",
            )
        if not self.is_valid(row):
            ended = datetime.fromtimestamp(row.expires_at / 1000, UTC)
            raise StateError(
                f"{row.name}-{row.version} expired on {ended:%Y-%m-%d %H:%M} UTC",
                hint="look in the list for a newer version, or ask the operator to release one",
            )

    def is_valid(self, row: BundleRow) -> bool:
        """Neither withdrawn nor expired."""
        return row.withdrawn_at is None and self._clock_ms() < row.expires_at

    def path(self, row: BundleRow) -> Path:
        if not row.file_digest:
            raise NotFoundError(
                f"the file of {row.name}-{row.version} was deleted with the content of its study",
                hint="it was withdrawn before; look in the list for a newer version",
            )
        return self._store.blobs.existing(row.file_digest)

    def manifest(self, row: BundleRow) -> Manifest:
        return self._manifest(row.manifest_digest)

    def withdrawals(self) -> tuple[int, bytes]:
        """Serial and signed list of every withdrawal so far; (0, b"") before the first release.

        The list of one serial is always the same bytes: a reader who meets another suspects a forgery.
        """
        rows = self.rows()
        if not rows:
            return 0, b""
        entries = tuple(
            Withdrawal(name=row.name, version=row.version, reason=row.reason, at_unix_ms=row.withdrawn_at)
            for row in rows
            if row.withdrawn_at is not None
        )
        first = min(row.released_at for row in rows)
        issued = max((entry.at_unix_ms for entry in entries), default=first)
        listed = Withdrawals(serial=1 + len(entries), issued_unix_ms=issued, entries=entries)
        return listed.serial, write_withdrawals(listed, self._key.pem)

    def _read_manifest(self, digest: str) -> Manifest:
        try:
            return Manifest.model_validate_json(read_file(self._store.blobs.existing(digest)))
        except ValidationError as error:
            raise StorageError(
                f"the manifest {digest[:12]}… of a released bundle cannot be read",
                hint="the disk has changed it, or another version wrote it: restore the state folder",
            ) from error


def parse_file_name(file_name: str) -> tuple[str, int]:
    """Name and version of NAME-VERSION.fedmap; NotFoundError for any other text."""
    match split_reference(file_name.removesuffix(SUFFIX)):
        case (str(name), int(version)) if file_name.endswith(SUFFIX):
            return name, version
    raise _unknown(file_name)


def _is_for(tier: int, row: BundleRow) -> bool:
    """A T3 site predicts: it is given no prior to fine-tune."""
    return tier < 3 or row.tier == 3


def _unknown(what: str) -> NotFoundError:
    return NotFoundError(
        f"there is no bundle {shown(what)} here",
        hint="list the bundles and check name and version, such as uci-heart-t3-1; or ask the operator",
    )
