"""kill −9 of each side at each phase: the study completes with the same μ and θ_k as without the fault.

One study per side survives every kill in turn. The long tests kill once per study, at one point each.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedmap.process.fault_points import VARIABLE
from fedmap_lab.local.federation import LocalFederation
from fedmap_lab.simulation.simulate import Study
from tests.lab.conftest import BINARY_PLAN
from tests.services.forked_federation import ForkedFederation
from tests.services.outcome import assert_same_as_simulated
from tests.services.studies import SmallStudy, assemble, small_study, start, wait_until_ended

Kill = Callable[[LocalFederation, SmallStudy, tuple[str, ...]], None]
ENDS_WITHIN_SECONDS = 120
SIGKILLED = -9
# The fourth answer is one of round 1: two sites have sent their statistics, one the first model, before it.
# Whoever is killed there starts again in round 1, and the next point is its first of that kind.
AGGREGATOR_POINTS = (
    "aggregator.receiving:4",
    "aggregator.between_blob_and_commit",
    "aggregator.received",
    "aggregator.estimating",
)
AGENT_POINTS = (
    "agent.training",
    "agent.outbox_before_rename",  # the model of the round is kept, its answer is not: the fit is done again
    "agent.trained",
    "agent.half_uploaded",
    "agent.uploaded_without_receipt",
)


@pytest.fixture
def study(tmp_path: Path) -> SmallStudy:
    """Two consensus rounds, the second with the multipliers of the first, and one under the prior."""
    plan = BINARY_PLAN.replace("epochs = 3", "epochs = 3\nconsensus_share = 0.67")
    return small_study(tmp_path, plan, {"a": 90, "b": 70}, rounds=3)


def killed(federation: LocalFederation, name: str) -> bool:
    return federation.process(name).wait(timeout=ENDS_WITHIN_SECONDS) == SIGKILLED


def assert_ended_as_simulated(federation: LocalFederation, study: SmallStudy, simulated: Study) -> None:
    status = wait_until_ended(federation, study)
    assert status.phase == "complete"
    assert all(entry.answered == 2 for entry in status.history)
    assert_same_as_simulated(federation, study, status, simulated)


def kill_the_aggregator(federation: LocalFederation, study: SmallStudy, points: tuple[str, ...]) -> None:
    """At each point in turn, while both agents run; then it is served undisturbed."""
    assemble(federation, study)
    federation.stop("aggregator")
    federation.serve({VARIABLE: points[0]})
    start(federation, study)
    for site in study.sites:
        federation.run_site(site.name)
    for point in points[1:]:
        assert killed(federation, "aggregator"), point
        federation.serve({VARIABLE: point})
    assert killed(federation, "aggregator")
    federation.serve()


def kill_an_agent(federation: LocalFederation, study: SmallStudy, points: tuple[str, ...]) -> None:
    """Site a's, at each point in turn; then it runs undisturbed."""
    assemble(federation, study)
    start(federation, study)
    federation.run_site("b")
    for point in points:
        federation.run_site("a", {VARIABLE: point})
        assert killed(federation, "a"), point
    federation.run_site("a")


@pytest.mark.parametrize(
    ("kill", "points"),
    [
        pytest.param(kill_the_aggregator, AGGREGATOR_POINTS, id="aggregator, every point"),
        pytest.param(kill_an_agent, AGENT_POINTS, id="agent, every point"),
        *(
            pytest.param(kill_the_aggregator, (f"aggregator.{at}",), id=at, marks=pytest.mark.long)
            for at in ("receiving:4", "between_blob_and_commit:4", "received:4", "estimating:3")
        ),
        *(
            pytest.param(kill_an_agent, (f"agent.{at}",), id=at, marks=pytest.mark.long)
            for at in ("training", "trained", "half_uploaded:3", "uploaded_without_receipt:3")
        ),
    ],
)
def test_a_study_whose_processes_are_killed_ends_as_if_nothing_had_happened(
    tmp_path: Path, study: SmallStudy, kill: Kill, points: tuple[str, ...]
) -> None:
    simulated = study.simulated()
    with ForkedFederation(tmp_path / "federation") as federation:
        kill(federation, study, points)
        assert_ended_as_simulated(federation, study, simulated)
