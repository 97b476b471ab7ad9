"""Released bundles and download links, on both databases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedmap.errors import ConflictError, NotFoundError, StorageError
from fedmap.files.digests import sha256_hex
from fedmap_aggregator.store import BundleRow, LinkRow, Store
from tests.aggregator.store.conftest import NOW, add_study

HOUR = 3_600_000


def a_bundle(store: Store, version: int = 1, name: str = "stroke-t2") -> BundleRow:
    """Its blobs are there; its row is not."""
    return BundleRow(
        name=name,
        version=version,
        study="stroke",
        round=3,
        tier=int(name[-1]),
        file_digest=store.blobs.put(f"{name} {version}".encode()),
        size=5_000_000_000,
        manifest_digest=store.blobs.put(b"manifest"),
        key_fingerprint="SHA256:ab",
        released_at=NOW,
        expires_at=NOW + HOUR,
    )


def add(store: Store, *rows: BundleRow) -> None:
    with store.transaction() as transaction:
        for row in rows:
            transaction.bundles.add(row)


@pytest.fixture
def released(store: Store) -> BundleRow:
    add_study(store)
    row = a_bundle(store)
    add(store, row)
    return row


def test_a_bundle_comes_back_as_it_was_stored(store: Store, released: BundleRow) -> None:
    with store.reading() as transaction:
        assert transaction.bundles.get("stroke-t2", 1) == released
        assert transaction.bundles.get("stroke-t2", 2) is None
        assert transaction.bundles.list() == (released,)
    assert released.file_name == "stroke-t2-1.fedmap"


def test_bundles_are_sorted_by_name_and_then_by_number(store: Store, released: BundleRow) -> None:
    assert released.version == 1
    add(store, *(a_bundle(store, version) for version in range(2, 12)), a_bundle(store, 1, "stroke-t3"))
    with store.reading() as transaction:
        listed = [(row.name, row.version) for row in transaction.bundles.list()]
    assert listed == [*(("stroke-t2", version) for version in range(1, 12)), ("stroke-t3", 1)]


@pytest.mark.parametrize("version", [1, 3])
def test_a_version_is_never_used_twice_nor_left_out(store: Store, released: BundleRow, version: int) -> None:
    with pytest.raises(ConflictError, match="reached version 1"):
        add(store, replace(released, version=version))


def test_no_row_names_a_bundle_that_is_not_on_the_disk(store: Store) -> None:
    add_study(store)
    row, lost = a_bundle(store), sha256_hex(b"lost")
    for half in (replace(row, file_digest=lost), replace(row, manifest_digest=lost)):
        with pytest.raises(StorageError, match="not on the disk"):
            add(store, half)
    with store.reading() as transaction:
        assert transaction.bundles.next_version("stroke-t2") == 1


def test_a_bundle_of_no_study_is_refused(store: Store) -> None:
    with pytest.raises(StorageError, match="breaks a rule"):
        add(store, a_bundle(store))


def test_of_two_withdrawals_the_first_reason_stands(store: Store, released: BundleRow) -> None:
    with store.transaction() as transaction:
        assert transaction.bundles.withdraw("stroke-t2", 1, "wrong unit \x00", NOW + 1)
    with store.transaction() as transaction:
        assert not transaction.bundles.withdraw("stroke-t2", 1, "another reason", NOW + 2)
    with store.reading() as transaction:
        row = transaction.bundles.get("stroke-t2", 1)
    assert row == replace(released, withdrawn_at=NOW + 1, reason="wrong unit \N{REPLACEMENT CHARACTER}")


def test_a_bundle_that_was_never_released_cannot_be_withdrawn(store: Store, released: BundleRow) -> None:
    assert released.version == 1
    with pytest.raises(NotFoundError, match="stroke-t2-2"), store.transaction() as transaction:
        transaction.bundles.withdraw("stroke-t2", 2, "reason", NOW)


def test_a_link_is_spent_by_one_caller_only(store: Store, other_store: Store, released: BundleRow) -> None:
    link = LinkRow("hash-1", released.name, released.version, NOW, NOW + HOUR)
    with store.transaction() as transaction:
        transaction.links.add(link)
    with store.reading() as transaction:
        assert transaction.links.get("hash-1") == link
        assert transaction.links.get("hash-2") is None
    with store.transaction() as transaction:
        assert transaction.links.spend("hash-1", NOW + 5)
    with other_store.transaction() as transaction:
        assert not transaction.links.spend("hash-1", NOW + 6)
        assert transaction.links.get("hash-1") == replace(link, spent_at=NOW + 5)


def test_a_link_to_no_bundle_is_refused(store: Store) -> None:
    with pytest.raises(StorageError, match="breaks a rule"), store.transaction() as transaction:
        transaction.links.add(LinkRow("hash-1", "stroke-t2", 1, NOW, NOW + HOUR))
