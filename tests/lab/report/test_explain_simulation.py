"""`explain` on what `simulate` wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmap.errors import FedmapError
from fedmap.study.plan.study_plan import StudyPlan
from fedmap_lab.federation.engines import VectorisedEngine
from fedmap_lab.federation.sites import load_federation
from fedmap_lab.methods.registry import METHODS
from fedmap_lab.report.explaining import explain
from fedmap_lab.simulation.results import write_study
from fedmap_lab.simulation.simulate import simulate
from tests.lab.conftest import MakeCohort

SITES = {"one": (1, 60), "two": (1, 50), "clinic": (2, 40)}


@pytest.fixture
def study(binary_plan: StudyPlan, make_cohort: MakeCohort, tmp_path: Path) -> Path:
    federation = load_federation(binary_plan, make_cohort(SITES))
    for method in ("fedmap-sketch", "fedavg"):
        found = simulate(federation, METHODS[method], VectorisedEngine(1), 1, 0)
        write_study(found, tmp_path / method, method, "vectorised", 1, 0)
    return tmp_path


def test_a_simulation_is_explained_with_the_settings_of_its_method(study: Path) -> None:
    found = explain(study / "fedmap-sketch", None, study / "explained")
    assert found.facts.method == "fedmap-sketch"
    assert found.facts.sites == ("one", "two")
    assert (study / "explained" / "prior-by-round.png").is_file()


def test_a_method_with_one_model_for_all_has_nothing_to_explain(study: Path) -> None:
    with pytest.raises(FedmapError, match="no personal models beside a global one"):
        explain(study / "fedavg", None, study / "explained")


def test_rounds_that_were_damaged_are_refused(study: Path) -> None:
    (study / "fedmap-sketch" / "rounds.csv").write_text("round,loss\n1,2\n")
    with pytest.raises(FedmapError, match=r"rounds\.csv"):
        explain(study / "fedmap-sketch", None, study / "explained")
