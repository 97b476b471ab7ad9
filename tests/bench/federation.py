"""An aggregator process with agents that bring no data, ready for a measurement."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fedmap.study.plan.reading import parse_plan
from fedmap.study.terms import StudyTerms
from fedmap_aggregator.operator.client import OperatorClient
from fedmap_lab.local.federation import LocalFederation
from tests.bench.bare_agent import BareAgent, Enrolled, enrol
from tests.services.studies import operator

TRIES = 20 * 60  # a minute


@dataclass(frozen=True)
class BenchFederation:
    """A started study, its agents and its operator."""

    processes: LocalFederation
    operator: OperatorClient
    agents: tuple[BareAgent, ...]
    sites: tuple[Enrolled, ...]
    terms: StudyTerms
    folder: Path

    @property
    def pki(self) -> Path:
        return self.processes.aggregator_folder / "state" / "pki"

    def start(self) -> None:
        self.operator.control(self.terms.study, "start")

    def through_preparations(self) -> None:
        """Answer statistics and the first model, so that round 1 is open."""
        for agent in self.agents:
            agent.answer(agent.next_task())
        drawn = self.first_asked("initialise")
        drawn.answer(drawn.next_task())

    def first_asked(self, task_id: str) -> BareAgent:
        """The one agent that is asked for the first model."""
        for _ in range(TRIES):
            (status,) = self.operator.status(self.terms.study).studies
            if status.task_id == task_id:
                break
            with suppress(subprocess.TimeoutExpired):
                self.processes.process("aggregator").wait(timeout=0.05)
        for agent in self.agents:
            if agent.connection.next_task(agent.instance, (), 0) is not None:
                return agent
        raise AssertionError(f"nobody was asked for {task_id}")


@contextmanager
def bench_federation(plan_toml: str, agents: int, rounds: int) -> Iterator[BenchFederation]:
    """Enrol `agents` sites at a new aggregator and have them approve a study that is not started yet."""
    terms = StudyTerms.of_plan(parse_plan(plan_toml, "bench"), rounds, 1)
    with tempfile.TemporaryDirectory(prefix="fedmap-bench-") as name:
        folder = Path(name)
        with LocalFederation(folder / "federation", log_level="warning") as processes:
            processes.initialise()
            processes.serve()
            address = f"localhost:{processes.port}"
            with operator(processes) as client:
                joining = processes.aggregator_folder / "state" / "pki" / "joining.pem"
                sites = tuple(enrol(client, joining, address, f"site-{n:03d}") for n in range(agents))
                client.create_study(plan_toml, rounds, 1, [])
                made = []
                for site in sites:
                    connection = site.connect(address)
                    connection.approve(terms.study, terms.digest)
                    made.append(BareAgent(site.site, terms, connection, folder))
                try:
                    yield BenchFederation(processes, client, tuple(made), sites, terms, folder)
                finally:
                    for agent in made:
                        agent.connection.close()
