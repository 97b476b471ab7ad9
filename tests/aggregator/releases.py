"""Studies that can be released, and the operator's calls for it, in a few words."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fedmap.bundles.verification import Trust, VerifiedBundle, verify_bundle
from fedmap.contract.v1 import values
from tests.aggregator import small_study as made
from tests.aggregator.centre import OPERATOR, Centre, centre_in, run_until

DAY_MS = 86_400_000


def make_finished(folder: Path) -> Path:
    """The state of a centre whose only study is complete: two rounds at two sites."""
    with centre_in(folder) as centre:
        finish(centre)
    return folder


@contextmanager
def reopened(finished: Path, folder: Path) -> Iterator[Centre]:
    """A centre that goes on from a copy of that state."""
    copied = folder / "centre"
    shutil.copytree(finished, copied)
    with centre_in(copied) as centre:
        yield centre


def finish(
    centre: Centre, name: str = "small-binary", phase: str = "complete", rounds: int = 2
) -> made.Small:
    """A study of two new sites, taken to this phase."""
    sites = tuple(centre.enrolled(f"{name}-{side}") for side in ("north", "south"))
    study = centre.started(*sites, name=name, rounds=rounds)
    run_until(study, phase, *sites)
    return study


class Release(NamedTuple):
    """What the operator is told of a release."""

    bundle: values.ReleasedBundle
    made: bool
    key_fingerprint: str


def release(
    centre: Centre,
    study: str = "small-binary",
    round_number: int = 0,
    tier: int = 0,
    expires: int = 0,
) -> Release:
    request = values.ReleaseBundleRequest(study, round_number, tier, expires)
    done = centre.releases.release(OPERATOR, request)
    assert done.bundle is not None
    return Release(done.bundle, done.made, done.key_fingerprint)


def withdraw(
    centre: Centre, bundle: values.ReleasedBundle, reason: str = "wrong unit"
) -> values.WithdrawBundleResponse:
    request = values.WithdrawBundleRequest(bundle.name, bundle.version, reason)
    return centre.releases.withdraw(OPERATOR, request)


def link(centre: Centre, bundle: values.ReleasedBundle, hours: int = 0) -> str:
    """The token of a new download link."""
    request = values.MakeDownloadLinkRequest(name=bundle.name, version=bundle.version, valid_hours=hours)
    return centre.releases.make_link(OPERATOR, request).url.rpartition("/")[2]


def verified(centre: Centre, bundle: values.ReleasedBundle) -> VerifiedBundle:
    """As a clinic would, with the fingerprint from paper."""
    path = centre.catalogue.path(centre.catalogue.row(bundle.name, bundle.version))
    trust = Trust(frozenset({centre.release_key.fingerprint}))
    return verify_bundle(path, trust, centre.clock())


def actions(centre: Centre) -> list[tuple[str, str, str]]:
    """(actor, action, subject) of the audit log, about bundles."""
    with centre.store.reading() as transaction:
        entries = [e for e in transaction.audit.entries() if e.action.startswith("bundle.")]
    return [(entry.actor, entry.action, entry.subject) for entry in entries]
