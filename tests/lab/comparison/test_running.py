"""Tuning, interruption, divergence, and input that does not fit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fedmap.errors import DataError, FedmapError, StorageError
from fedmap.study.plan.reading import parse_plan
from fedmap.study.plan.study_plan import StudyPlan
from fedmap_lab.comparison.jobs import run_job
from fedmap_lab.comparison.records import comparison_folder
from fedmap_lab.comparison.request import Identity, Request, choose_methods, identity_of
from fedmap_lab.comparison.results import Crash, Job, JobResult, Setting
from fedmap_lab.comparison.running import Workplace, _best, compare, run_jobs
from fedmap_lab.comparison.summary import caveats, not_in_the_report
from fedmap_lab.comparison.tables import write_tables
from fedmap_lab.comparison.trials import TUNING_SEED, all_settings, apply, draw_trials
from fedmap_lab.federation.engines import VectorisedEngine
from fedmap_lab.federation.sites import Federation, load_federation
from fedmap_lab.methods.registry import METHODS
from fedmap_lab.report.explaining import explain
from fedmap_lab.report.writing import write_report
from tests.lab.comparison.conftest import lab, read
from tests.lab.conftest import BINARY_PLAN, MakeCohort

SITES = {"one": (1, 60), "two": (1, 50), "clinic": (2, 40)}
SMALL = BINARY_PLAN.replace("hidden = [16, 8]", "hidden = [4]").replace(
    "epochs = 3", "epochs = 1\nfine_tune_epochs = 1"
)


@pytest.fixture
def federation(make_cohort: MakeCohort) -> Federation:
    return load_federation(parse_plan(SMALL, "small.toml"), make_cohort(SITES))


@pytest.fixture
def identity(binary_plan: StudyPlan, make_cohort: MakeCohort) -> Identity:
    return identity_of(request_of(binary_plan, make_cohort(SITES)))


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


def test_a_folder_with_something_else_in_it_is_left_alone(identity: Identity, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep me")
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


def test_a_job_that_crashed_counts_in_the_progress_of_its_own_step_only(
    make_cohort: MakeCohort, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_or_crash(_: Workplace, jobs: list[Job], __: int) -> Iterator[JobResult | Crash]:
        for job in jobs:
            yield Crash(job, -9) if job.kind == "trial" else JobResult(job=job, outcome="done")

    monkeypatch.setattr("fedmap_lab.comparison.running.run_jobs", run_or_crash)
    heard: list[tuple[str, int, int]] = []
    plan = parse_plan(SMALL, "small.toml")
    request = request_of(plan, make_cohort(SITES), trials=2, seeds=2)
    found = compare(request, tmp_path / "out", 1, lambda *news: heard.append(news))
    assert heard == [*(("tuning", n, 2) for n in range(3)), *(("comparing", n, 2) for n in range(3))]
    assert len(found.crashes) == 2


def test_a_method_that_diverges_in_a_comparison_is_recorded_and_the_others_go_on(
    make_cohort: MakeCohort, tmp_path: Path
) -> None:
    """A column on an absurd scale that the plan does not scale: the kernel of pFedGP becomes singular."""
    data = make_cohort(SITES)
    for site in SITES:
        head, *rows = (data / f"{site}.csv").read_text().splitlines()
        cells = [row.split(",", 1) for row in rows]
        huge = [f"{float(first) * 1e25!r},{others}" for first, others in cells]
        (data / f"{site}.csv").write_text("\n".join([head, *huge]) + "\n")
    text = SMALL.replace("range = [-50, 50]", "range = [-5e26, 5e26]\nscale = false", 1)
    plan = parse_plan(text.replace("batch_norm = true", "batch_norm = false"), "absurd.toml")
    out = tmp_path / "out"
    found = compare(request_of(plan, data, methods=("pfedgp", "fedavg", "fedmap")), out, 1, lambda *_: None)
    assert [run.outcome for run in found.runs] == ["diverged", "done", "done"]
    write_tables(found, out)
    (failure,) = read(out / "failures.csv")
    assert (failure["method"], failure["kind"]) == ("pfedgp", "diverged")
    assert "singular" in failure["reason"]
    assert {row["method"] for row in read(out / "metrics.csv")} == {"fedavg", "fedmap"}
    assert any(text.startswith("Diverged") and "pfedgp" in text for text in caveats(found))


def test_a_smaller_call_says_which_recorded_runs_its_report_is_without(
    make_cohort: MakeCohort, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: Workplace, jobs: list[Job], __: int) -> Iterator[JobResult]:
        return (JobResult(job=job, outcome="done") for job in jobs)

    monkeypatch.setattr("fedmap_lab.comparison.running.run_jobs", run)
    plan, data, out = parse_plan(SMALL, "small.toml"), make_cohort(SITES), tmp_path / "out"
    full = request_of(plan, data, methods=("individual", "fedavg", "fedmap-sketch"), seeds=2)
    assert not_in_the_report(compare(full, out, 1, lambda *_: None)) == ""
    smaller = compare(replace(full, methods=("fedavg",)), out, 1, lambda *_: None)
    assert not_in_the_report(smaller) == (
        "Tables and report are without the recorded runs of individual and fedmap-sketch. To have them back, "
        "give the same command with --methods individual,fedavg,fedmap-sketch --seeds 2."
    )
    fewer = not_in_the_report(compare(replace(full, seeds=1), out, 1, lambda *_: None))
    assert "without those with seed 1." in fewer
    assert fewer.endswith("--seeds 2.")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda whole: whole[: len(whole) // 2], "damaged"),
        (lambda _: b"", "damaged"),
        (lambda whole: whole.replace(b'"outcome"', b'"result"'), "not a record of this version"),
    ],
)
def test_a_record_that_cannot_be_read_is_named_with_what_is_wrong_and_what_to_do(
    identity: Identity, tmp_path: Path, change: Callable[[bytes], bytes], said: str
) -> None:
    job = Job(kind="run", method="fedavg", seed=0, rounds=1)
    with comparison_folder(tmp_path / "out", identity) as records:
        records.keep(JobResult(job=job, outcome="done"))
        (record,) = (tmp_path / "out" / "records").iterdir()
        record.write_bytes(change(record.read_bytes()))
        with pytest.raises(FedmapError, match=said) as caught:
            records.find(job)
        assert record.name in caught.value.message
        assert "delete this one file" in caught.value.hint
        record.unlink()
        assert records.find(job) is None, "to be done again"


def test_a_second_process_on_the_same_folder_is_told_of_out(identity: Identity, tmp_path: Path) -> None:
    with (
        comparison_folder(tmp_path / "out", identity),
        pytest.raises(StorageError, match="another process") as caught,
        comparison_folder(tmp_path / "out", identity),
    ):
        pass
    assert "--out" in caught.value.hint
    assert "state folder" not in caught.value.hint


def test_a_comparison_that_is_not_finished_is_called_so_by_report_and_explain(
    identity: Identity, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with comparison_folder(out, identity) as records:
        records.keep(JobResult(job=Job(kind="run", method="fedavg", seed=0, rounds=1), outcome="done"))
    for ask in (lambda: write_report(out), lambda: explain(out, None, tmp_path / "explained")):
        with pytest.raises(FedmapError, match=r"not finished \(1 job done\)") as caught:
            ask()
        assert "same `fedmap-lab compare` command" in caught.value.hint


def test_trials_without_tune_are_wrong_usage(make_cohort: MakeCohort, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(SMALL)
    asked = ("--plan", tmp_path / "plan.toml", "--data", make_cohort(SITES), "--out", tmp_path / "out")
    done = lab(*asked, "--methods", "fedavg", "--trials", "3")
    assert done.returncode == 2
    assert "--tune" in done.stderr
    assert not (tmp_path / "out").exists()


def test_an_excluded_site_is_in_the_answer_with_the_reason_and_no_small_count(
    make_cohort: MakeCohort, tmp_path: Path
) -> None:
    data = make_cohort(SITES)
    (data / "two.csv").write_text("a,b,c,sick,years\n")
    (data / "clinic.csv").write_text("a,b,c,sick,years\n0.5,0.5,0.5,1,2\n0.5,0.5,0.5,0,2\n")
    (tmp_path / "plan.toml").write_text(SMALL.replace("[rounds]", "[rounds]\nquorum = 1"))
    asked = ("--plan", tmp_path / "plan.toml", "--data", data, "--out", tmp_path / "out")
    done = lab(*asked, "--methods", "fedavg", "--seeds", "1", "--rounds", "1", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    excluded = {one["site"]: one["problems"] for one in answer["excluded"]}
    assert set(excluded) == {"two", "clinic"}
    assert all(excluded.values())
    assert "fewer than" in " ".join(excluded["clinic"]), "two rows are a small count"
    assert any("Left out" in text and "two" in text for text in answer["caveats"])


def stopped_after_one_job(folder: Path, data: Path, how: signal.Signals, code: int) -> None:
    """Start a comparison and stop it once one of its six jobs is done."""
    (folder / "plan.toml").write_text(SMALL)
    command = [
        *(sys.executable, "-m", "fedmap_lab.cli.main", "compare", "--plan", str(folder / "plan.toml")),
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
