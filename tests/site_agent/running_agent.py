"""A whole agent in this process, against an aggregator of the tests' own: for tests of the run loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from fedmap.algorithm.pooling.statistics import Scaler
from fedmap.algorithm.prior.values import initial_parameters, initial_prior
from fedmap.contract.v1.values import Task
from fedmap.files.digests import sha256_hex
from fedmap.process.settings import read_config
from fedmap.study.models import model_of
from fedmap.study.plan.reading import parse_plan
from fedmap.study.tensors.parameter_files import PriorFile, encode_prior
from fedmap.study.terms import StudyTerms
from fedmap_site.config import SiteConfig
from fedmap_site.exit.outbox import Outbox
from fedmap_site.identity.files import write_identity
from fedmap_site.loop.notices import Notice
from fedmap_site.loop.stopping import Stop
from fedmap_site.wiring import Site, clock_ms, run_agent
from tests.lab.conftest import BINARY_PLAN, write_site
from tests.site_agent.federation_double import AggregatorDouble

ENDS_WITHIN_SECONDS = 60.0


class AgentSite:
    """A site's folder that is in order: configuration, policy, data, identity, one approved study."""

    def __init__(self, folder: Path, aggregator: AggregatorDouble, egress: str = "automatic") -> None:
        self.folder = folder
        self.aggregator = aggregator
        self.policy_path = folder / "policy.toml"
        self.write_policy(egress)
        write_site(folder / "patients.csv", 120, 7)
        self.config_path = folder / "site.toml"
        self.config_path.write_text(
            f'[site]\nname = "a"\nstate = "state"\n[data]\nfile = "patients.csv"\n'
            f'[aggregator]\naddress = "{aggregator.address}"\n'
            "[agent]\npoll_seconds = 1\nheartbeat_seconds = 1\nlongest_backoff_seconds = 0.2\n"
        )
        self.config = read_config(self.config_path, SiteConfig)
        self.notices: list[Notice] = []
        self._told = threading.Condition()
        write_identity(self.site().state.folder, aggregator.authority.site("a"))
        self.adopt(BINARY_PLAN)

    def adopt(self, plan: str) -> None:
        """Take part in this study from now on."""
        self.terms = StudyTerms.of_plan(parse_plan(plan, "toy"), rounds=2, seed=3)
        self.site().state.leave(self.terms.study)
        self.site().state.approve(self.terms, "Dr Ada", clock_ms(), "p" * 64)

    def write_policy(self, egress: str) -> None:
        self.policy_path.write_text(f'egress = "{egress}"\nmin_rows = 10\nmin_events = 0\n')

    def site(self) -> Site:
        return Site(self.config)

    @property
    def outbox(self) -> Outbox:
        return self.site().outbox

    def states(self) -> dict[str, str]:
        return {item.id: item.status.state for item in self.outbox.items()}

    def actions(self) -> list[str]:
        return [entry.action for entry in self.site().audit.entries()]

    def statistics(self, attempt: int = 0) -> Task:
        return Task("toy", "statistics", "statistics", terms_digest=self.terms.digest, attempt=attempt)

    def fit(self, number: int = 1, attempt: int = 0) -> Task:
        """A round from a first prior, which the aggregator then has."""
        model = model_of(self.terms.plan)
        theta = initial_parameters(model.network, 3, "a")
        prior = initial_prior(model.network, self.terms.plan.prior, theta)
        scaler = Scaler(torch.zeros(model.network.inputs), torch.ones(model.network.inputs))
        data = encode_prior(model.network, self.terms.plan.prior, PriorFile(prior, scaler))
        self.aggregator.priors[sha256_hex(data)] = data
        digest, size = sha256_hex(data), len(data)
        name = f"round-{number}"
        return Task("toy", name, "fit", number, self.terms.digest, digest, size, attempt=attempt)

    def tell(self, notice: Notice) -> None:
        with self._told:
            self.notices.append(notice)
            self._told.notify_all()

    def wait_for_notice(self, words: str) -> Notice:
        """Until the agent has said something with these words."""

        def found() -> list[Notice]:
            return [notice for notice in self.notices if words in str(notice)]

        with self._told:
            assert self._told.wait_for(found, ENDS_WITHIN_SECONDS), self.notices
        return found()[0]

    @contextmanager
    def running(self) -> Iterator[Stop]:
        """The agent in a thread; leaving stops it and passes on what it raised."""
        stop, raised = Stop(), list[BaseException]()

        def run() -> None:
            try:
                run_agent(self.config, self.tell, stop)
            except BaseException as error:  # noqa: BLE001  handed to the test below
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield stop
        finally:
            stop.set()
            thread.join(ENDS_WITHIN_SECONDS)
        assert not thread.is_alive(), "the agent did not stop"
        if raised:
            raise raised[0]

    def run_until(self, happened: Callable[[], object]) -> None:
        """Run the agent until the aggregator has seen something."""
        with self.running():
            self.aggregator.wait_for(happened, ENDS_WITHIN_SECONDS)
