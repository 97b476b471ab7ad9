"""Small studies for tests with real processes: invented rows, a plan, a whole run and what it left behind."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedmap.contract.v1 import values
from fedmap.errors import UnreachableError
from fedmap.study.plan.reading import load_plan
from fedmap_aggregator.identity.profile import read_profile
from fedmap_aggregator.operator.client import OperatorClient
from fedmap_lab.federation.engines import make_engine
from fedmap_lab.federation.sites import load_federation
from fedmap_lab.local.federation import LocalFederation, LocalSite
from fedmap_lab.methods.fedmap import FedMap
from fedmap_lab.simulation.simulate import Study, simulate
from tests.lab.conftest import BINARY_PLAN, write_site

SEED = 11
SITES = {"a": 160, "b": 120, "c": 200}
ENDED = ("complete", "aborted")
TENTHS_OF_A_SECOND = 10 * 180


@dataclass(frozen=True)
class SmallStudy:
    """Files of a study: the plan and one file per site."""

    plan: Path
    cohort: Path
    sites: tuple[LocalSite, ...]
    rounds: int

    @property
    def name(self) -> str:
        return load_plan(self.plan).study.name

    def simulated(self) -> Study:
        """The same study in one process, one site after another."""
        federation = load_federation(load_plan(self.plan), self.cohort)
        return simulate(federation, FedMap(), make_engine("loop"), self.rounds, SEED)


def small_study(
    directory: Path, plan: str = BINARY_PLAN, sites: Mapping[str, int] | None = None, rounds: int = 3
) -> SmallStudy:
    """Write a cohort and its plan under `directory`."""
    cohort = directory / "cohort"
    cohort.mkdir(parents=True)
    rows_of = sites or SITES
    for number, (site, rows) in enumerate(rows_of.items()):
        write_site(cohort / f"{site}.csv", rows, 500 + number)
    (cohort / "sites.csv").write_text("site,tier,region\n" + "".join(f"{s},1,north\n" for s in rows_of))
    (directory / "plan.toml").write_text(plan)
    local = tuple(LocalSite(site, "north", cohort / f"{site}.csv") for site in rows_of)
    return SmallStudy(directory / "plan.toml", cohort, local, rounds)


def operator(federation: LocalFederation) -> OperatorClient:
    """The operator whose profile `init` wrote."""
    return OperatorClient(read_profile(federation.aggregator_folder / "state" / "pki" / "operator.toml"))


def assemble(federation: LocalFederation, study: SmallStudy) -> str:
    """Everything before the agents run: init, serve, enrol, create, approve. The digest of the terms."""
    federation.initialise()
    federation.serve()
    for site in study.sites:
        federation.join(site)
    digest = federation.create_study(study.plan, study.rounds, SEED)
    for site in study.sites:
        federation.site(site.name, "approve", digest, "--approver", "test")
    return digest


def start(federation: LocalFederation, study: SmallStudy) -> None:
    with operator(federation) as client:
        client.control(study.name, "start")


def wait_until_ended(federation: LocalFederation, study: SmallStudy) -> values.StudyStatus:
    """Watch the study until it is complete or aborted. Its last status."""
    with operator(federation) as client:
        for _ in range(TENTHS_OF_A_SECOND):
            try:
                (status,) = client.status(study.name).studies
            except UnreachableError:
                continue
            if status.phase in ENDED:
                return status
            try:
                federation.process("aggregator").wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError(f"the aggregator ended: {federation.tail()}")
    logs = "\n".join(f"{site.name}: {federation.tail(site.name)}" for site in study.sites)
    raise AssertionError(f"the study did not end: {status}\n{federation.tail(lines=20)}\n{logs}")


def run_through(federation: LocalFederation, study: SmallStudy) -> values.StudyStatus:
    """A whole undisturbed study."""
    assemble(federation, study)
    start(federation, study)
    for site in study.sites:
        federation.run_site(site.name)
    return wait_until_ended(federation, study)
