"""Verifying a bundle of 200 MB: time against hashing the same file.

`python -m tests.bench.bundles` prints the figures. The bundle holds a real model of that size, signed; the
file is in the page cache for both sides, which take turns.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from fedmap.algorithm.pooling.statistics import Scaler
from fedmap.algorithm.prior.values import initial_prior
from fedmap.bundles.manifest import Draft, Lineage
from fedmap.bundles.verification import Trust, verify_bundle
from fedmap.bundles.writing import prior_parts, readable_parts, scaler_values, write_bundle
from fedmap.study.models import model_of
from fedmap.study.plan.inputs import planned_inputs
from fedmap.study.plan.reading import parse_plan
from fedmap.study.terms import StudyTerms
from fedmap.trust.signing import fingerprint, new_release_key, public_key_of

RELEASED = 1_767_225_600_000
YEAR = 365 * 86_400_000
PLAN = """
[study]
name = "bench"
title = "A model of 200 MB"

[task]
kind = "binary"
label = "outcome"
classes = [0, 1]
metric = "auroc"

[[features]]
name = "x"
kind = "number"

[model]
name = "mlp"
hidden = [5000, 10000]

[prior]
convex = false
"""


@dataclass(frozen=True)
class VerifyBench:
    """Seconds are the best of the turns."""

    size: int
    verify_seconds: float
    hash_seconds: float  # SHA-256 over the file, as hashlib does it

    @property
    def ratio(self) -> float:
        """Limit: 2."""
        return self.verify_seconds / self.hash_seconds


def measure(turns: int = 7) -> VerifyBench:
    """Both in one run, in a temporary folder of 200 MB."""
    key = new_release_key()
    trust = Trust(frozenset({fingerprint(public_key_of(key))}))
    with TemporaryDirectory(prefix="fedmap-bench-") as folder:
        path = _written(Path(folder), key)
        best = _best(
            {
                "verify": lambda: verify_bundle(path, trust, RELEASED),
                "hash": lambda: _hashed(path),
            },
            turns,
        )
        return VerifyBench(path.stat().st_size, best["verify"], best["hash"])


def _written(folder: Path, key: bytes) -> Path:
    plan = parse_plan(PLAN, "bench")
    terms, network = StudyTerms.of_plan(plan), model_of(plan).network
    inputs = planned_inputs(plan).count
    prior = initial_prior(network, plan.prior, network.initialise(0))
    draft = Draft(
        name="bench-t3",
        version=1,
        study="bench",
        title=plan.study.title,
        intended_use="",
        tier=3,
        released_unix_ms=RELEASED,
        expires_unix_ms=RELEASED + YEAR,
        software_version="bench",
        terms_json=terms.to_json(),
        terms_digest=terms.digest,
        plan_digest=plan.digest,
        model=plan.model.name,
        inputs=tuple(f"x{n}" for n in range(inputs)),
        lineage=Lineage(round=1, rounds=1, sites=1, prior_digest="0" * 64, accepted_updates=1),
        scaler=scaler_values(Scaler(torch.zeros(inputs), torch.ones(inputs))),
    )
    parts = prior_parts(plan, prior, 3) | readable_parts(draft)
    return write_bundle(folder / draft.file_name, draft, parts, key).path


def _hashed(path: Path) -> str:
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, hashlib.sha256).hexdigest()


def _best(alternatives: dict[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """One turn to warm up, then each in turn; the shortest time of each."""
    best = dict.fromkeys(alternatives, float("inf"))
    for turn in range(turns + 1):
        for name, run in alternatives.items():
            start = time.perf_counter()
            run()
            if turn:
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def main() -> None:
    found = measure()
    print(  # noqa: T201
        f"a bundle of {found.size / 1e6:.0f} MB: verified in {found.verify_seconds:.3f} s, "
        f"{found.ratio:.2f} × hashing it (limit 2)"
    )


if __name__ == "__main__":
    main()
