"""`python -m tests.bench.flower`: seconds per round on Flower, by our services, in the simulator; one study.

Needs the environment of docs/flower.md. Three T1 sites of invented blood donors on one machine, real
processes over TLS on loopback for the first two. A round is the time from the end of one to the end of the
next, the median of all but the first. The three must end with the same model, or nothing is printed.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from fedmap.data.cohort_directory import read_cohort_directory
from fedmap.study.models import model_of
from fedmap.study.plan.reading import load_plan
from fedmap.study.plan.study_plan import StudyPlan
from fedmap.study.run_folder import PRIOR, read_run
from fedmap.study.tensors.parameter_files import decode_prior
from fedmap.study.terms import StudyTerms
from fedmap_aggregator.store.blobs import BlobStore
from fedmap_flower.processes.deployment import deploy
from fedmap_lab.cohorts.making import make_cohort
from fedmap_lab.federation.engines import make_engine
from fedmap_lab.federation.sites import load_federation
from fedmap_lab.local.federation import LocalFederation, LocalSite
from fedmap_lab.methods.fedmap import FedMap
from fedmap_lab.simulation.simulate import simulate
from tests.bench.rows import ROOT, Row, publish
from tests.services.studies import SEED, SmallStudy, run_through

ROUNDS, COHORT_SEED = 8, 7


@dataclass(frozen=True)
class Measured:
    """Median seconds of a round, and the bytes of μ and ψ."""

    seconds: float
    model: bytes


def on_flower(plan: Path, cohort: Path, folder: Path, seed: int) -> Measured:
    terms = StudyTerms.of_plan(load_plan(plan), ROUNDS, seed)
    sites = [entry for entry in read_cohort_directory(cohort) if entry.tier == 1]
    out = folder / "out"
    deploy(
        folder / "deployment", terms, sites, {"terms": terms.to_json(), "sites": len(sites), "out": str(out)}
    )
    run = read_run(out).record
    return Measured(
        _between([one.closed_unix_ms / 1000 for one in run.rounds]), _model(terms.plan, out / PRIOR)
    )


def by_services(plan: Path, cohort: Path, folder: Path) -> Measured:
    entries = [entry for entry in read_cohort_directory(cohort) if entry.tier == 1]
    sites = tuple(LocalSite(entry.site, entry.region, entry.path) for entry in entries)
    with LocalFederation(folder / "federation") as federation:
        status = run_through(federation, SmallStudy(plan, cohort, sites, ROUNDS))
        prior = BlobStore(federation.aggregator_folder / "state" / "blobs").path(status.prior_digest)
        closed = [one.closed_unix_ms / 1000 for one in status.history]
        return Measured(_between(closed), _model(load_plan(plan), prior))


def in_the_simulator(plan: Path, cohort: Path, seed: int) -> Measured:
    federation = load_federation(load_plan(plan), cohort)
    ended: list[float] = []
    study = simulate(
        federation, FedMap(), make_engine("loop"), ROUNDS, seed, lambda _: ended.append(time.monotonic())
    )
    assert study.trained.prior is not None
    mu, psi = study.trained.prior.mu, study.trained.prior.psi
    return Measured(_between(ended), mu.numpy().tobytes() + psi.numpy().tobytes())


def _between(ended: Sequence[float]) -> float:
    return median(after - before for before, after in pairwise(ended))


def _model(plan: StudyPlan, path: Path) -> bytes:
    prior = decode_prior(model_of(plan).network, plan.prior, path).prior
    return prior.mu.numpy().tobytes() + prior.psi.numpy().tobytes()


def measure(scale: float = 0.25) -> Iterator[Row]:
    plan = ROOT / "lab" / "fedmap_lab" / "plans" / "interval.toml"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_cohort("interval", folder / "cohort", scale, COHORT_SEED)
        simulated = in_the_simulator(plan, folder / "cohort", SEED)
        served = by_services(plan, folder / "cohort", folder)
        flown = on_flower(plan, folder / "cohort", folder, SEED)
    if not simulated.model == served.model == flown.model:
        sys.exit("the three models differ")
    yield Row("a round of our services against the simulator (loop)", served.seconds / simulated.seconds)
    yield Row("a round of the Flower deployment against the simulator", flown.seconds / simulated.seconds)
    yield Row("a round of the Flower deployment against our services", flown.seconds / served.seconds)


if __name__ == "__main__":
    sys.exit(publish("flower", "python -m tests.bench.flower", measure))
