"""Tuning, interruption, divergence, and input that does not fit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import DataError, FedmapError
from common.plan import StudyPlan, parse_plan
from lab.comparison.jobs import Job, JobResult, run_job
from lab.comparison.records import comparison_folder
from lab.comparison.request import Request, choose_methods, identity_of
from lab.comparison.running import _best, compare
from lab.comparison.trials import TUNING_SEED, Setting, all_settings, apply, draw_trials
from lab.comparison.workers import Crash, Workplace, run_jobs
from lab.engines import VectorisedEngine
from lab.federation import Federation, load_federation
from lab.methods import METHODS
from tests.lab.conftest import BINARY_PLAN, MakeCohort

SITES = {"one": (1, 60), "two": (1, 50), "clinic": (2, 40)}
SMALL = BINARY_PLAN.replace("hidden = [16, 8]", "hidden = [4]").replace(
    "epochs = 3", "epochs = 1\nfine_tune_epochs = 1"
)


@pytest.fixture
def federation(make_cohort: MakeCohort) -> Federation:
    return load_federation(parse_plan(SMALL, "small.toml"), make_cohort(SITES))


def request_of(plan: StudyPlan, data: Path, **changes: object) -> Request:
    asked = Request(plan, data, ("fedavg",), seeds=1, rounds=1, trials=0, engine="vectorised")
    return replace(asked, **changes)  # type: ignore[arg-type]


def test_every_method_has_the_same_number_of_different_trials_with_the_default_first(
    binary_plan: StudyPlan,
) -> None:
    for name, method in METHODS.items():
        settings = binary_plan.settings
        trials = draw_trials(name, method, settings, 9)
        assert trials[0] == {}
        run = [all_settings(trial, method, settings) for trial in trials]
        assert len({tuple(sorted(one.items())) for one in run}) == 9, name


def test_the_strength_that_the_plan_has_already_is_not_tried_again(binary_plan: StudyPlan) -> None:
    method, settings = METHODS["fedmap"], binary_plan.settings
    assert settings.prior.alpha in method.space["alpha"]
    every = draw_trials("fedmap", method, settings, 36)
    assert all_settings({}, method, settings) not in [dict(trial) for trial in every]
    with pytest.raises(FedmapError, match="fedmap has 36 settings"):
        draw_trials("fedmap", method, settings, 37)


def test_more_trials_than_the_smallest_search_space_are_refused(binary_plan: StudyPlan) -> None:
    with pytest.raises(FedmapError, match="individual has 9 settings"):
        draw_trials("individual", METHODS["individual"], binary_plan.settings, 10)


def test_a_setting_changes_the_method_and_the_training_it_names(federation: Federation) -> None:
    setting = {"learning_rate": 0.5, "mu": 7.0}
    method, changed = apply(setting, METHODS["fedprox"], federation)
    assert getattr(method, "mu") == 7.0  # noqa: B009
    assert changed.settings.training.learning_rate == 0.5
    assert federation.settings.training.learning_rate == 0.01


def test_a_trial_never_looks_at_test_rows(federation: Federation) -> None:
    job = Job(kind="trial", method="fedavg", seed=TUNING_SEED, trial=1, rounds=1)
    before = run_job(federation, VectorisedEngine(1), job)
    for site in federation.sites:
        site.data.test.features.fill_(float("nan"))
    after = run_job(federation, VectorisedEngine(1), job)
    assert before.validation is not None
    assert after.validation == before.validation
    assert not after.scores


def test_the_trial_with_the_best_validation_figure_is_chosen(binary_plan: StudyPlan, tmp_path: Path) -> None:
    settings: tuple[Setting, ...] = ({}, {"mu": 1.0}, {"mu": 2.0})
    trials = [
        JobResult(
            job=Job(kind="trial", method="fedprox", seed=0, trial=i, setting=settings[i], rounds=1),
            outcome="done" if value else "diverged",
            validation=value,
        )
        for i, value in enumerate((0.7, 0.8, None))
    ]
    request = request_of(binary_plan, tmp_path)
    assert _best(request, settings, trials) == {"mu": 1.0}
    assert _best(request, settings, trials[2:]) == {}, "the default, where every trial diverged"


def test_a_method_that_diverges_is_recorded_with_the_reason(federation: Federation) -> None:
    for site in federation.tier(1):
        site.data.train.features.fill_(float("inf"))
    for method in ("fedavg", "pooled", "scaffold", "pfedfda", "pfedgp"):
        job = Job(kind="run", method=method, seed=0, rounds=1)
        result = run_job(federation, VectorisedEngine(1), job)
        assert result.outcome == "diverged", method
        assert result.reason


def test_an_undefined_method_is_recorded_with_the_reason(
    survival_plan: StudyPlan, make_cohort: MakeCohort
) -> None:
    survival = load_federation(survival_plan, make_cohort(SITES))
    result = run_job(survival, VectorisedEngine(1), Job(kind="run", method="pfedgp", seed=0, rounds=1))
    assert result.outcome == "undefined"
    assert "survival" in result.reason


def test_data_that_do_not_fit_the_plan_are_said_before_anything_is_written(
    make_cohort: MakeCohort, tmp_path: Path
) -> None:
    plan = parse_plan(SMALL.replace('name = "c"', 'name = "cholesterol"'), "small.toml")
    with pytest.raises(DataError, match="cholesterol"):
        compare(request_of(plan, make_cohort(SITES)), tmp_path / "out", 1, lambda *_: None)
    assert not (tmp_path / "out").exists()


def test_an_unknown_method_is_named() -> None:
    with pytest.raises(FedmapError, match="fedmagic"):
        choose_methods("fedavg,fedmagic")
    assert choose_methods(" fedmap , fedavg") == ("fedavg", "fedmap")


def test_a_folder_with_something_else_in_it_is_left_alone(
    binary_plan: StudyPlan, make_cohort: MakeCohort, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep me")
    identity = identity_of(request_of(binary_plan, make_cohort(SITES)))
    with pytest.raises(FedmapError, match="something other"), comparison_folder(tmp_path / "out", identity):
        pass
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_a_job_whose_process_dies_is_a_crash_and_the_next_one_is_done(
    make_cohort: MakeCohort, tmp_path: Path
) -> None:
    """A method that is not in the registry stands for whatever ends a process."""
    workplace = Workplace(parse_plan(SMALL, "small.toml"), make_cohort(SITES), "vectorised")
    jobs = [Job(kind="run", method=name, seed=0, rounds=1) for name in ("no-such-method", "individual")]
    crash, result = run_jobs(workplace, jobs, workers=1)
    assert isinstance(crash, Crash)
    assert crash.exit_code == 1
    assert isinstance(result, JobResult)
    assert result.outcome == "done"
    assert not (tmp_path / "out").exists()


def stopped_after_one_job(folder: Path, data: Path, how: signal.Signals, code: int) -> None:
    """Start a comparison and stop it once one of its six jobs is done."""
    (folder / "plan.toml").write_text(SMALL)
    command = [
        *(sys.executable, "-m", "lab.cli", "compare", "--plan", str(folder / "plan.toml")),
        *("--data", str(data), "--out", str(folder / "out"), "--methods", "fedavg,fedprox"),
        *("--seeds", "1", "--rounds", "1", "--tune", "--trials", "2", "--workers", "1"),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        while "tuning: 1 of 4 done" not in process.stderr.readline():
            assert process.poll() is None
        os.kill(process.pid, how)
        process.stderr.read()  # ends when the last process that could write to it is gone
        assert process.wait() == code


def records(out: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (out / "records").glob("*.json")}


def test_ctrl_c_leaves_no_process_and_the_comparison_resumes_where_it_was(
    make_cohort: MakeCohort, tmp_path: Path
) -> None:
    data, out = make_cohort(SITES), tmp_path / "out"
    stopped_after_one_job(tmp_path, data, signal.SIGINT, 130)
    kept = records(out)
    assert 1 <= len(kept) < 6
    plan = parse_plan(SMALL, "small.toml")
    resumed = compare(
        request_of(plan, data, methods=("fedavg", "fedprox"), trials=2), out, 1, lambda *_: None
    )
    assert len(records(out)) == 6
    assert kept.items() <= records(out).items(), "what was done is not done again"
    assert [trial.job.trial for trial in resumed.trials] == [0, 1, 0, 1]
    assert [run.outcome for run in resumed.runs] == ["done", "done"]


def test_the_workers_of_a_killed_comparison_end_themselves(make_cohort: MakeCohort, tmp_path: Path) -> None:
    stopped_after_one_job(tmp_path, make_cohort(SITES), signal.SIGKILL, -signal.SIGKILL)
    assert records(tmp_path / "out")
