from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedmap.errors import FedmapError, TrainingError
from fedmap.metrics import Metric, SkippedMetric
from fedmap.study.plan.study_plan import StudyPlan
from fedmap_lab.federation.engines import VectorisedEngine
from fedmap_lab.federation.sites import load_federation
from fedmap_lab.local.figures import draw_convergence
from fedmap_lab.methods.fedmap import FedMap
from fedmap_lab.methods.registry import METHODS
from fedmap_lab.simulation.results import study_directory, summarise, write_study
from fedmap_lab.simulation.simulate import Study, simulate
from tests.lab.conftest import MakeCohort, without_events

SITES = {"one": (1, 200), "two": (1, 150), "three": (1, 120), "four": (2, 80), "five": (3, 60)}


def run(plan: StudyPlan, directory: Path, method: str = "fedmap", rounds: int = 4) -> Study:
    federation = load_federation(plan, directory)
    return simulate(federation, METHODS[method], VectorisedEngine(2), rounds, seed=3)


def values(study: Study, tier: int, model: str, metric: str) -> list[float]:
    return [
        s.result.value
        for s in study.scores
        if (s.tier, s.model, s.result.name) == (tier, model, metric) and isinstance(s.result, Metric)
    ]


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_all_three_tiers_are_trained_and_scored(binary_plan: StudyPlan, make_cohort: MakeCohort) -> None:
    study = run(binary_plan, make_cohort(SITES))
    assert len(values(study, 1, "personal", "auroc")) == 3
    assert len(values(study, 2, "personal", "auroc")) == 1
    assert len(values(study, 3, "global", "auroc")) == 1
    assert not values(study, 3, "personal", "auroc")
    own = values(study, 1, "personal", "auroc")
    assert min(own) > 0.6
    assert study.trained.prior is not None
    for model in study.trained.personal.values():
        assert not torch.equal(model.theta, study.trained.prior.mu), "a personal model is not the global one"
    (row,) = [r for r in summarise(study.scores) if (r.tier, r.model, r.metric) == (1, "personal", "auroc")]
    assert row.median == pytest.approx(float(np.median(own)))
    assert row.sites == 3


def test_survival_sites_get_risks_and_a_pooled_baseline(
    survival_plan: StudyPlan, make_cohort: MakeCohort
) -> None:
    study = run(survival_plan, make_cohort(SITES))
    assert study.rule.baseline is not None
    assert min(values(study, 1, "personal", "c_index")) > 0.55
    assert values(study, 3, "global", "brier")
    assert 0 < values(study, 1, "personal", "brier")[0] < 0.5


@pytest.mark.parametrize("method", ["fedavg", "individual"])
def test_baselines_run_on_the_same_federation(
    binary_plan: StudyPlan, make_cohort: MakeCohort, method: str
) -> None:
    study = run(binary_plan, make_cohort(SITES), method)
    assert len(values(study, 1, "personal", "auroc")) == 3
    assert (study.trained.prior is None) == (method == "individual")


@pytest.mark.parametrize(
    ("rounds", "looked_at"), [(4, [1, 2, 3, 4]), (5, [1, 2, 3, 4, 5]), (12, [1, 2, 4, 6, 8, 10, 12])]
)
def test_a_short_run_is_looked_at_more_often_than_the_plan_says(
    binary_plan: StudyPlan, make_cohort: MakeCohort, rounds: int, looked_at: list[int]
) -> None:
    """The plan says every third round."""
    rarely = binary_plan.model_copy(
        update={"rounds": binary_plan.rounds.model_copy(update={"evaluate_every": 3})}
    )
    study = run(rarely, make_cohort({"one": (1, 80), "two": (1, 80)}), rounds=rounds)
    assert [point.round for point in study.curve] == looked_at


def test_the_loss_falls_over_the_rounds(binary_plan: StudyPlan, make_cohort: MakeCohort) -> None:
    history = run(binary_plan, make_cohort(SITES), rounds=6).trained.history
    assert [record.round for record in history] == [1, 2, 3, 4, 5, 6]
    assert history[-1].loss < history[0].loss


def test_a_single_class_site_trains_and_its_auroc_is_skipped_with_the_reason(
    binary_plan: StudyPlan, make_cohort: MakeCohort, tmp_path: Path
) -> None:
    directory = make_cohort(SITES)
    without_events(directory, "two")
    study = run(binary_plan, directory)
    assert "two" in study.trained.personal
    (skipped,) = [
        s.result
        for s in study.scores
        if s.site == "two" and s.model == "personal" and s.result.name == "auroc"
    ]
    assert isinstance(skipped, SkippedMetric)
    assert "one class" in skipped.reason
    write_study(study, tmp_path / "out", "fedmap", "vectorised", 4, 3)
    rows = [row for row in read(tmp_path / "out" / "skipped.csv") if row["site"] == "two"]
    assert any("one class" in row["reason"] for row in rows)
    assert any("one class" in row["note"] for row in read(tmp_path / "out" / "notes.csv"))


def test_a_survival_site_without_events_trains_is_recorded_and_has_no_weight_in_mu(
    survival_plan: StudyPlan, make_cohort: MakeCohort
) -> None:
    directory = make_cohort(SITES)
    without_events(directory, "three")
    study = run(survival_plan, directory)
    assert "three" in study.trained.personal
    assert torch.isfinite(study.trained.personal["three"].theta).all()
    assert not [s for s in study.scores if s.site == "three" and isinstance(s.result, Metric)]
    # Its L is zero, so the per-sample rule would give it the largest weight of all.
    assert study.trained.history[0].largest_weight < 0.7  # of the two that remain


def test_t3_sites_without_a_global_model_are_skipped_with_the_reason(
    binary_plan: StudyPlan, make_cohort: MakeCohort
) -> None:
    study = run(binary_plan, make_cohort(SITES), "individual")
    (result,) = [s.result for s in study.scores if s.tier == 3 and s.result.name == "auroc"]
    assert isinstance(result, SkippedMetric)
    assert "no global model" in result.reason


def test_a_t2_site_with_too_few_rows_fails_alone(binary_plan: StudyPlan, make_cohort: MakeCohort) -> None:
    limits = binary_plan.limits.model_copy(update={"min_rows": 1})
    plan = binary_plan.model_copy(update={"limits": limits})
    study = run(plan, make_cohort({**SITES, "tiny": (2, 2)}))
    assert [failure.site for failure in study.failed] == ["tiny"]
    assert len(values(study, 1, "personal", "auroc")) == 3


def test_results_of_two_runs_never_mix(
    binary_plan: StudyPlan, make_cohort: MakeCohort, tmp_path: Path
) -> None:
    directory, out = make_cohort(SITES), tmp_path / "out"
    for method in ("fedmap", "individual"):
        with study_directory(out) as fresh:
            write_study(run(binary_plan, directory, method), fresh, method, "vectorised", 4, 3)
    assert not (out / "mu.safetensors").exists()
    assert json.loads((out / "summary.json").read_text())["method"] == "individual"
    (out / "mine.txt").write_text("keep me")
    (out / "summary.json").unlink()
    with pytest.raises(FedmapError, match="something other"), study_directory(out):
        pass
    assert (out / "mine.txt").read_text() == "keep me"


def test_a_study_that_diverges_everywhere_is_an_error_not_a_result(
    binary_plan: StudyPlan, make_cohort: MakeCohort
) -> None:
    federation = load_federation(binary_plan, make_cohort(SITES))
    spoilt = [
        site.data.train.features.fill_(float("inf")) for site in federation.tier(1)
    ]  # what a missed check would let through
    assert spoilt
    with pytest.raises(TrainingError, match="quorum is 2"):
        simulate(federation, FedMap(), VectorisedEngine(2), 2, seed=0)


def test_one_diverging_site_is_recorded_and_the_round_goes_on(
    binary_plan: StudyPlan, make_cohort: MakeCohort
) -> None:
    federation = load_federation(binary_plan, make_cohort(SITES))
    federation.tier(1)[0].data.train.features.fill_(float("inf"))
    study = simulate(federation, FedMap(), VectorisedEngine(2), 2, seed=0)
    assert {failure.site for failure in study.failed} == {federation.tier(1)[0].name}
    assert len(study.failed) == 2
    assert study.trained.prior is not None
    assert torch.isfinite(study.trained.prior.mu).all()
    spoilt = federation.tier(1)[0].name
    assert spoilt not in study.trained.personal, "a site that never trained has no personal model"
    own = [s.result for s in study.scores if s.site == spoilt and s.model == "personal"]
    assert own
    assert all(isinstance(result, SkippedMetric) for result in own)


def test_written_results_can_be_read_back(
    binary_plan: StudyPlan, make_cohort: MakeCohort, tmp_path: Path
) -> None:
    study = run(binary_plan, make_cohort(SITES))
    out = tmp_path / "out"
    write_study(study, out, "fedmap", "vectorised", 4, 3)
    draw_convergence(study, out / "convergence.png")
    rows = read(out / "metrics.csv")
    assert list(rows[0]) == ["tier", "site", "region", "metric", "value"]
    assert {row["site"] for row in rows} == set(SITES)
    named = load_file(out / "mu.safetensors")
    assert study.trained.prior is not None
    mu = study.federation.model.network.spec.to_mapping(study.trained.prior.mu)
    assert {name for name in named if not name.startswith("buffers.")} == mu.keys()
    assert all(torch.equal(named[name], values) for name, values in mu.items())
    assert {path.stem for path in (out / "personal").iterdir()} == {"one", "two", "three", "four"}
    summary = json.loads((out / "summary.json").read_text())
    assert summary["plan_digest"] == binary_plan.digest
    assert (out / "convergence.png").stat().st_size > 10_000
    assert len(read(out / "rounds.csv")) == 4
