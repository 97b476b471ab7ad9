"""A dry run makes every kind of answer and sends nothing. That a real study sends the same is asked in
tests/services/test_readme_federation.py, which has one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedmap.algorithm.model.network import Network
from fedmap.algorithm.model.parameters import ParameterSpec
from fedmap.algorithm.prior.aggregation import Load, PriorStep, next_prior
from fedmap.algorithm.prior.values import Prior, initial_prior
from fedmap.algorithm.settings import AggregationSettings, PriorSettings
from fedmap.contract.v1.values import EvaluationAnswer
from fedmap.errors import DataError, NotFoundError, TrainingError
from fedmap.study.plan.reading import parse_plan
from fedmap.study.terms import StudyTerms
from fedmap_site.config import DataSection
from fedmap_site.loop.dry_run import DryRun, rehearse
from fedmap_site.policy import SitePolicy
from fedmap_site.state.studies import DataRecord, SiteState
from fedmap_site.wiring import clock_ms
from tests.aggregator.commands import agent
from tests.lab.conftest import BINARY_PLAN, SURVIVAL_PLAN, write_site
from tests.site_agent.stages import said

POLICY = SitePolicy(min_rows=10, min_events=0)
TWO_KINDS = BINARY_PLAN.replace("epochs = 3", "epochs = 3\nconsensus_share = 0.5")


class Site:
    """A state folder with one approved study and a file of patients."""

    def __init__(self, folder: Path, plan: str = BINARY_PLAN, rows: int = 160) -> None:
        self.data = folder / "patients.csv"
        write_site(self.data, rows, 500)
        self.terms = StudyTerms.of_plan(parse_plan(plan, "toy"), rounds=3, seed=11)
        self.state = SiteState(folder / "state")
        self.state.prepare()
        self.state.approve(self.terms, "Data protection", clock_ms(), POLICY.digest)

    def rehearse(self, policy: SitePolicy = POLICY) -> DryRun:
        return rehearse("a", self.state, self.terms.study, DataSection(file=self.data), policy, clock_ms)


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("plan", [BINARY_PLAN, SURVIVAL_PLAN], ids=["binary", "survival"])
def test_every_kind_of_answer_is_made_with_a_manifest_and_the_study_is_not_touched(
    tmp_path: Path, plan: str
) -> None:
    site = Site(tmp_path, plan)
    before = files_below(site.state.folder)
    done = site.rehearse()
    assert [one.item.content for one in done.answers] == [
        "statistics",
        "initial_model",
        "fit",
        "rule",
        "evaluation",
    ]
    assert all("What would leave the site a" in one.item.manifest_text() for one in done.answers)
    after = files_below(site.state.folder)
    assert {name: data for name, data in after.items() if "/dry-run/" not in name} == before
    assert not any(".backstage" in name for name in after)
    assert (done.rounds, done.peak_bytes > 1 << 20, done.fit.seconds > 0) == (3, True, True)


def test_both_kinds_of_rounds_are_rehearsed_where_a_study_has_two(tmp_path: Path) -> None:
    """The evaluation then has the figures of a model of the site's own, as it will have in the study."""
    done = Site(tmp_path, TWO_KINDS).rehearse()
    fits = [one.item.answer().task_id for one in done.answers if one.item.content == "fit"]
    assert fits == ["round-1", "round-3"]
    scores = said(done.answers[-1].item, EvaluationAnswer).scores
    assert any(score.value is not None for score in scores if score.model == "personal")


def test_the_last_round_is_rehearsed_from_the_prior_that_the_first_one_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the study, ψ rests in the consensus round and learns in the round under the prior."""
    steps: list[tuple[Prior, Prior]] = []

    def noting(
        spec: ParameterSpec,
        settings: PriorSettings,
        aggregation: AggregationSettings,
        prior: Prior,
        log_omega: Mapping[str, float],
        load: Load,
    ) -> PriorStep:
        step = next_prior(spec, settings, aggregation, prior, log_omega, load)
        steps.append((prior, step.prior))
        return step

    monkeypatch.setattr("fedmap.study.centre_step.next_prior", noting)
    Site(tmp_path, TWO_KINDS).rehearse()
    (before, between), (again, after) = steps
    assert again is between
    assert not torch.equal(between.mu, before.mu)
    assert torch.equal(between.psi, before.psi)
    assert not torch.equal(after.psi, between.psi)


def test_a_second_dry_run_takes_the_place_of_the_first(tmp_path: Path) -> None:
    site = Site(tmp_path)
    first, second = site.rehearse(), site.rehearse()
    assert [a.item.manifest.tensors_digest for a in first.answers] == [
        a.item.manifest.tensors_digest for a in second.answers
    ]
    assert len(list(second.folder.glob("toy.*"))) == 5


def test_a_study_that_was_not_approved_is_not_rehearsed(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.state.leave("toy")
    with pytest.raises(NotFoundError, match="takes no part"):
        site.rehearse()


def test_what_would_stop_a_round_stops_the_dry_run_with_the_reason(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with pytest.raises(DataError, match="fewer than 500 rows"):
        site.rehearse(POLICY.model_copy(update={"min_rows": 500}))
    site.state.remember_data("toy", DataRecord(digest="0" * 64, name="patients.csv"))
    with pytest.raises(DataError, match="not the one that the study was begun with"):
        site.rehearse()
    assert not list((site.state.study_folder("toy") / "dry-run").glob("toy.*"))


def test_a_fit_that_fails_says_why_here_and_would_say_little_to_the_centre(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverging(network: Network, settings: PriorSettings, theta: Tensor) -> Prior:
        return initial_prior(network, settings, torch.full_like(theta, 3e38))

    monkeypatch.setattr("fedmap.study.centre_step.initial_prior", diverging)
    with pytest.raises(TrainingError, match="round-1 would fail: round 1: "):
        Site(tmp_path).rehearse()


def test_the_command_dials_nobody_and_says_that_nothing_was_sent(tmp_path: Path) -> None:
    Site(tmp_path)
    with listening() as (port, connections):
        (tmp_path / "policy.toml").write_text('egress = "automatic"\nmin_rows = 10\nmin_events = 0\n')
        (tmp_path / "site.toml").write_text(
            f'[site]\nname = "a"\nstate = "state"\n[data]\nfile = "patients.csv"\n'
            f'[aggregator]\naddress = "localhost:{port}"\n'
        )
        done = agent(tmp_path, "dry-run", "toy")
    assert done.returncode == 0, done.stderr
    assert "Nothing was sent." in done.stdout
    assert connections == []
    assert not list((tmp_path / "state" / "outbox").iterdir()), "nothing waits to be sent either"
    assert '"study.rehearsed"' in (tmp_path / "state" / "audit.jsonl").read_text()


@contextmanager
def listening() -> Iterator[tuple[int, list[str]]]:
    """A port where an aggregator would be; every connection to it is noted."""
    seen: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    peer, address = server.accept()
                except OSError:
                    return
                seen.append(str(address))
                peer.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield int(server.getsockname()[1]), seen
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
