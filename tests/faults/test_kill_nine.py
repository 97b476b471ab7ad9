"""kill −9 of each side at each phase: the study completes with the same μ and θ_k as without the fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.fault_points import VARIABLE
from lab.local_federation import LocalFederation
from tests.services.outcome import assert_same_as_simulated
from tests.services.studies import SmallStudy, assemble, small_study, start, wait_until_ended

ENDS_WITHIN_SECONDS = 120
SIGKILLED = -9


@pytest.fixture
def study(tmp_path: Path) -> SmallStudy:
    return small_study(tmp_path, sites={"a": 90, "b": 70}, rounds=2)


# The third answer is one of round 1: two sites have sent their statistics, one the first model, before it.
@pytest.mark.parametrize(
    "point",
    [
        "aggregator.receiving:4",
        "aggregator.between_blob_and_commit:4",
        "aggregator.received:4",
        "aggregator.estimating:3",
    ],
)
def test_an_aggregator_killed_at_any_point_ends_with_the_same_prior(
    tmp_path: Path, study: SmallStudy, point: str
) -> None:
    simulated = study.simulated()
    with LocalFederation(tmp_path / "federation") as federation:
        assemble(federation, study)
        federation.stop("aggregator")
        federation.serve({VARIABLE: point})
        start(federation, study)
        for site in study.sites:
            federation.run_site(site.name)
        assert federation.process("aggregator").wait(timeout=ENDS_WITHIN_SECONDS) == SIGKILLED
        federation.serve()
        status = wait_until_ended(federation, study)
        assert status.phase == "complete"
        assert all(entry.answered == 2 for entry in status.history)
        assert_same_as_simulated(federation, study, status, simulated)


@pytest.mark.parametrize(
    "point",
    ["agent.training", "agent.trained", "agent.half_uploaded:3", "agent.uploaded_without_receipt:3"],
)
def test_an_agent_killed_at_any_point_ends_with_the_same_models(
    tmp_path: Path, study: SmallStudy, point: str
) -> None:
    simulated = study.simulated()
    with LocalFederation(tmp_path / "federation") as federation:
        assemble(federation, study)
        start(federation, study)
        federation.run_site("a", {VARIABLE: point})
        federation.run_site("b")
        assert federation.process("a").wait(timeout=ENDS_WITHIN_SECONDS) == SIGKILLED
        federation.run_site("a")
        status = wait_until_ended(federation, study)
        assert status.phase == "complete"
        assert all(entry.answered == 2 for entry in status.history)
        assert_same_as_simulated(federation, study, status, simulated)
