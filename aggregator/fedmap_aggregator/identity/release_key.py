"""The key that signs bundles: an Ed25519 key in a file of its own, apart from the authority's.

`init` makes it, or the first start of an aggregator that is older than bundles. It is never made a second
time: sites and clinics know its fingerprint, some of them from paper. What is signed with it is
`release.signing` and `release.catalogue`.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fedmap.errors import FedmapError, StateError
from fedmap.files.durable import make_folder, read_file, storage_errors, write_durably
from fedmap.process.log import get_logger
from fedmap.trust.signing import fingerprint, new_release_key, public_key_of
from fedmap_aggregator.config import AggregatorConfig

if TYPE_CHECKING:  # the database is slow to import, and most commands do not need it
    from fedmap_aggregator.store import Store

_OTHERS = 0o077
_OTHERS_BUT_A_GROUP = 0o037
_ROOT = 0


@dataclass(frozen=True)
class ReleaseKey:
    """A private key and what everybody knows of it."""

    pem: bytes = field(repr=False)
    fingerprint: str


def release_key_path(config: AggregatorConfig) -> Path:
    return config.release.key or config.server.state / "release" / "key.pem"


def read_release_key(path: Path) -> ReleaseKey:
    """The key in a file that nobody else can read; StateError with the exact fault otherwise."""
    pem = read_file(path)
    if readable_by_others(path):
        raise StateError(
            f"others on this machine can read the release key {path}",
            hint=f"run `chmod 600 {path}`; whoever read it can sign bundles in your name: see "
            "docs/operator.md, When a key may have been stolen",
        )
    try:
        return ReleaseKey(pem, fingerprint(public_key_of(pem)))
    except FedmapError as error:
        raise StateError(
            f"{path} holds no release key: {error.message}",
            hint="restore the file from the newest backup; a release key is an Ed25519 key in PEM",
        ) from error


def make_release_key(path: Path) -> ReleaseKey:
    """A new key at `path`, where there is none yet."""
    make_folder(path.parent)
    write_durably(path, new_release_key())
    return read_release_key(path)


def load_release_key(config: AggregatorConfig, store: Store, now: int) -> ReleaseKey:
    """The key of a running aggregator. One that was lost is not replaced: what it signed must stay known."""
    path = release_key_path(config)
    with store.reading() as transaction:
        released = transaction.bundles.list()
    newest = max(released, key=lambda row: row.released_at, default=None)
    if not _is_there(path):
        if newest is not None:
            raise StateError(
                f"the release key {path} is missing, and bundles were signed with it",
                hint="restore it from a backup. A new key must be made on purpose, since every site and "
                "clinic has to be told its fingerprint: see docs/operator.md, Release",
            )
        key = make_release_key(path)
        with store.transaction() as transaction:
            detail = {"fingerprint": key.fingerprint}
            transaction.audit.append("aggregator", "release_key.make", "release key", detail, now)
        get_logger().info("release_key_made", digest=key.fingerprint)
        return key
    key = read_release_key(path)
    if newest is not None and newest.key_fingerprint != key.fingerprint:
        get_logger().warning("release_key_changed", digest=key.fingerprint)
    return key


def readable_by_others(path: Path) -> bool:
    """Whether more than this account can read the file, as far as its mode says."""
    with storage_errors(path):
        found = path.stat()
    return is_open_to_others(found.st_mode, found.st_uid, os.geteuid())


def is_open_to_others(mode: int, owner: int, account: int) -> bool:
    """Root's file that one group may read is private: so do secret stores hand out keys to a container."""
    handed_out = owner == _ROOT != account
    return bool(stat.S_IMODE(mode) & (_OTHERS_BUT_A_GROUP if handed_out else _OTHERS))


def _is_there(path: Path) -> bool:
    with storage_errors(path):
        return path.is_file()
