"""Verifying a bundle of 200 MB: time against hashing the same file.

The bundle holds a real model of that size, signed; the
file is in the page cache for both sides, which take turns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
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
from tests.bench.rows import Row, best_seconds

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
hidden = [5000, WIDTH]

[prior]
convex = false
"""


def measure(width: int = 10_000, turns: int = 7) -> Iterator[Row]:
    """In a temporary folder of 200 MB."""
    key = new_release_key()
    trust = Trust(frozenset({fingerprint(public_key_of(key))}))
    with TemporaryDirectory(prefix="fedmap-bench-") as folder:
        path = _written(Path(folder), key, width)
        best = best_seconds(
            {"verify": lambda: verify_bundle(path, trust, RELEASED), "hash": lambda: _hashed(path)}, turns
        )
    yield Row("verifying a bundle of 200 MB against hashing it", best["verify"] / best["hash"], 2)


def _written(folder: Path, key: bytes, width: int) -> Path:
    plan = parse_plan(PLAN.replace("WIDTH", str(width)), "bench")
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
