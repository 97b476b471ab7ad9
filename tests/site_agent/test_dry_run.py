"""A dry run shows what a real study sends, and sends nothing."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from common.algorithm.network import Network
from common.algorithm.prior import Prior, initial_prior
from common.algorithm.settings import PriorSettings
from common.errors import DataError, NotFoundError, TrainingError
from common.plan import parse_plan
from common.study_terms import StudyTerms
from lab.local_federation import LocalFederation
from site_agent.audit_log import AuditLog
from site_agent.config import DataSection
from site_agent.dry_run import DryRun, rehearse
from site_agent.outbox import Outbox
from site_agent.outbox_item import OutboxItem
from site_agent.policy import SitePolicy
from site_agent.state import DataRecord, SiteState
from site_agent.wiring import clock_ms
from tests.aggregator.commands import agent
from tests.lab.conftest import BINARY_PLAN, SURVIVAL_PLAN, write_site
from tests.services.studies import run_through, small_study

POLICY = SitePolicy(min_rows=10, min_events=0)


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


def shape_of(item: OutboxItem) -> tuple[object, ...]:
    """Fields by name, tensors by name, type and shape, checks; how many entries a list has may differ."""
    fields = {re.sub(r"\[\d+\]", "[]", field.name) for field in item.manifest.fields}
    tensors = [(tensor.name, tensor.dtype, tensor.shape) for tensor in item.manifest.tensors]
    return fields, tensors, [check.name for check in item.manifest.checks]


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_dry_run_shows_the_fields_and_shapes_that_a_real_study_sends(tmp_path: Path) -> None:
    study = small_study(tmp_path / "study", sites={"a": 160, "b": 150}, rounds=1)
    with LocalFederation(tmp_path / "federation") as federation:
        assert run_through(federation, study).phase == "complete"
        state = SiteState(federation.site_folder("a") / "state")
    real = Outbox(state.outbox_folder, AuditLog(state.audit_path, clock_ms), clock_ms).items("sent")
    (data,) = [site.data for site in study.sites if site.name == "a"]
    policy = SitePolicy(min_rows=10, min_events=0, egress="automatic")
    done = rehearse("a", state, "toy", DataSection(file=data), policy, clock_ms)
    rehearsed = {one.item.task_id: shape_of(one.item) for one in done.answers}
    assert {item.task_id for item in real} <= set(rehearsed)
    assert {"statistics", "round-1", "rule", "evaluate"} <= {item.task_id for item in real}
    for item in real:
        assert shape_of(item) == rehearsed[item.task_id], item.id


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

    monkeypatch.setattr("site_agent.dry_run.initial_prior", diverging)
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
