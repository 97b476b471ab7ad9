"""The release key: apart from the authority, private, made once, and never replaced behind anybody's back."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fedmap.errors import StateError
from fedmap.files.durable import write_durably
from fedmap.trust.signing import new_release_key
from fedmap_aggregator.checkup.identity import release_key
from fedmap_aggregator.config import AggregatorConfig
from fedmap_aggregator.identity.initialise import initialise, pki_paths
from fedmap_aggregator.identity.release_key import (
    is_open_to_others,
    load_release_key,
    read_release_key,
    release_key_path,
)
from fedmap_aggregator.store import BundleRow, Store
from fedmap_aggregator.store.layout import open_store
from tests.aggregator.running import config_in
from tests.aggregator.store.conftest import NOW, add_study


@pytest.fixture
def config(tmp_path: Path) -> AggregatorConfig:
    return config_in(tmp_path)


@pytest.fixture
def store(config: AggregatorConfig) -> Iterator[Store]:
    config.server.state.mkdir(mode=0o700)
    with open_store(config) as store:
        yield store


def release_something(store: Store, fingerprint: str) -> None:
    add_study(store)
    blob = store.blobs.put(b"bundle")
    row = BundleRow("stroke-t2", 1, "stroke", 1, 2, blob, 6, blob, fingerprint, NOW, NOW + 1)
    with store.transaction() as transaction:
        transaction.bundles.add(row)


def test_init_makes_a_private_key_apart_from_the_authority(config: AggregatorConfig) -> None:
    made = initialise(config, "kim", datetime.now(UTC))
    path = release_key_path(config)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert pki_paths(config).folder not in path.parents
    assert made.release_fingerprint == read_release_key(path).fingerprint
    assert made.release_fingerprint.startswith("SHA256:")


def test_init_keeps_a_key_that_was_put_in_place(tmp_path: Path) -> None:
    config = config_in(tmp_path, '[release]\nkey = "vault/release.pem"\n')
    (tmp_path / "vault").mkdir()
    write_durably(tmp_path / "vault" / "release.pem", new_release_key())
    before = (tmp_path / "vault" / "release.pem").read_bytes()
    initialise(config, "kim", datetime.now(UTC))
    assert release_key_path(config).read_bytes() == before


def test_an_aggregator_older_than_bundles_makes_its_key_at_the_first_start(
    config: AggregatorConfig, store: Store
) -> None:
    key = load_release_key(config, store, NOW)
    again = load_release_key(config, store, NOW)
    assert key == again
    with store.reading() as transaction:
        (entry,) = transaction.audit.entries()
    assert (entry.action, entry.detail) == ("release_key.make", {"fingerprint": key.fingerprint})
    assert key.pem.decode() not in repr(key)


def test_a_lost_key_is_not_replaced_once_something_was_released(
    config: AggregatorConfig, store: Store
) -> None:
    key = load_release_key(config, store, NOW)
    release_something(store, key.fingerprint)
    release_key_path(config).unlink()
    with pytest.raises(StateError, match="missing") as refused:
        load_release_key(config, store, NOW)
    assert "backup" in refused.value.hint
    assert not release_key_path(config).exists()


def test_a_key_that_was_exchanged_on_purpose_is_used(config: AggregatorConfig, store: Store) -> None:
    old = load_release_key(config, store, NOW)
    release_something(store, old.fingerprint)
    write_durably(release_key_path(config), new_release_key())
    assert load_release_key(config, store, NOW).fingerprint != old.fingerprint


def test_a_key_that_others_can_read_is_not_used(config: AggregatorConfig, store: Store) -> None:
    load_release_key(config, store, NOW)
    release_key_path(config).chmod(0o640)
    with pytest.raises(StateError, match="others on this machine can read"):
        load_release_key(config, store, NOW)
    with pytest.raises(StateError, match="others on this machine can read"):
        list(release_key(config))


def test_the_authoritys_key_cannot_take_the_place_of_the_release_key(config: AggregatorConfig) -> None:
    initialise(config, "kim", datetime.now(UTC))
    path = release_key_path(config)
    path.write_bytes(pki_paths(config).ca_key.read_bytes())
    with pytest.raises(StateError, match="Ed25519"):
        read_release_key(path)


def test_doctor_names_the_fingerprint_and_warns_of_a_missing_key(config: AggregatorConfig) -> None:
    made = initialise(config, "kim", datetime.now(UTC))
    (check,) = release_key(config)
    assert check.verdict == "ok"
    assert made.release_fingerprint in check.message
    release_key_path(config).unlink()
    (check,) = release_key(config)
    assert check.verdict == "warn"
    assert "backup" in check.hint


@pytest.mark.parametrize(
    ("mode", "owner", "account", "is_open"),
    [
        (0o600, 1000, 1000, False),
        (0o640, 1000, 1000, True),
        (0o440, 0, 65532, False),  # a secret as Kubernetes mounts it for one group
        (0o460, 0, 65532, True),
        (0o444, 0, 65532, True),
        (0o440, 0, 0, True),
        (0o440, 1000, 65532, True),
    ],
)
def test_a_key_is_private_to_its_owner_or_as_roots_file_to_one_group(
    mode: int, owner: int, account: int, is_open: bool
) -> None:
    assert is_open_to_others(mode, owner, account) == is_open
