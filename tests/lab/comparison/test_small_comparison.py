"""Every method, two seeds, a small cohort, in real processes: what OUT holds, and what a second call does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedmap.errors import FedmapError
from fedmap.study.plan.reading import parse_plan
from fedmap_lab.comparison.jobs import run_job
from fedmap_lab.comparison.request import Request
from fedmap_lab.comparison.results import Job
from fedmap_lab.comparison.running import compare
from fedmap_lab.comparison.tables import write_tables
from fedmap_lab.federation.engines import VectorisedEngine
from fedmap_lab.federation.sites import load_federation
from fedmap_lab.methods.names import METHOD_NAMES
from tests.lab.comparison.conftest import PLAN, ROUNDS, read
from tests.lab.conftest import write_site


@pytest.mark.xdist_group("comparison")
def test_every_method_is_scored_at_its_tiers_or_recorded_with_the_reason(compared: tuple[Path, str]) -> None:
    out = compared[0] / "out"
    rows = read(out / "metrics.csv")
    assert list(rows[0]) == ["method", "seed", "tier", "site", "region", "model", "metric", "value", "note"]
    refused = {
        row["method"]: row["reason"] for row in read(out / "failures.csv") if row["kind"] == "undefined"
    }
    for method in METHOD_NAMES:
        seen = {
            (row["seed"], row["tier"]) for row in rows if row["method"] == method and row["metric"] == "auroc"
        }
        tiers = ("1", "2") if method in ("individual", "pfedgp") else ("1", "2", "3")
        assert (method in refused) != (seen == {(seed, tier) for seed in "01" for tier in tiers}), method
    same_as_the_plan = {
        "fedmap-paper",
        "fedmap-convex",
        "fedmap-per-sample",
        "fedmap-start-local",
        "fedmap-no-consensus",
    }
    assert set(refused) == same_as_the_plan
    assert not [row for row in read(out / "failures.csv") if row["kind"] in ("crashed", "diverged")]


@pytest.mark.xdist_group("comparison")
def test_a_single_class_site_is_noted_and_its_auroc_skipped_with_the_reason(
    compared: tuple[Path, str],
) -> None:
    out = compared[0] / "out"
    skipped = [r for r in read(out / "skipped.csv") if r["site"] == "healthy" and r["metric"] == "auroc"]
    assert {row["method"] for row in skipped} >= {"fedmap", "pfedfda", "pfedgp"}
    assert all("one class" in row["reason"] for row in skipped)
    assert any("one class" in row["note"] for row in read(out / "notes.csv") if row["site"] == "healthy")
    (site,) = [row for row in read(out / "sites.csv") if row["site"] == "healthy"]
    assert site["outcome_share"] == "", "a count of zero is a small cell"


@pytest.mark.xdist_group("comparison")
def test_the_description_and_the_other_tables_can_be_read_back(compared: tuple[Path, str]) -> None:
    out = compared[0] / "out"
    described = json.loads((out / "comparison.json").read_text())
    assert described["plan_digest"] == parse_plan(PLAN, "plan.toml").digest
    assert described["methods"] == list(METHOD_NAMES)
    assert described["versions"]["torch"]
    assert "--seeds 2" in described["command"]
    weights = [
        r for r in read(out / "omega.csv") if (r["method"], r["seed"], r["round"]) == ("fedmap", "0", "2")
    ]
    assert sum(float(row["weight"]) for row in weights) == pytest.approx(1.0)
    assert {r["round"] for r in read(out / "rounds.csv") if r["method"] == "scaffold"} == {"1", "2"}
    assert {r["setting"] for r in read(out / "settings.csv") if r["method"] == "fedprox"} == {
        "learning_rate",
        "weight_decay",
        "mu",
    }


@pytest.mark.xdist_group("comparison")
def test_the_printed_tables_say_what_cannot_be_compared(compared: tuple[Path, str]) -> None:
    printed = " ".join(compared[1].split())
    for word in (
        "T1, 3 sites",
        "T2, 1 site",
        "T3, 1 site",
        "oracle",
        "no test between methods",
        "2 of 3 sites",
    ):
        assert word in printed, word


@pytest.mark.xdist_group("comparison")
def test_results_do_not_depend_on_the_processes_that_ran_them(compared: tuple[Path, str]) -> None:
    folder = compared[0]
    federation = load_federation(parse_plan(PLAN, "plan.toml"), folder / "cohort")
    for method in ("fedmap", "pfedbayes"):
        job = Job(kind="run", method=method, seed=1, rounds=int(ROUNDS))
        mine = run_job(federation, VectorisedEngine(workers=1), job)
        record = json.loads((folder / "out" / "records" / f"{job.key}.json").read_text())
        assert record["scores"] == mine.model_dump(mode="json")["scores"]


@pytest.mark.xdist_group("comparison")
def test_a_second_call_does_nothing_twice_and_another_plan_or_other_data_are_refused(
    compared: tuple[Path, str],
) -> None:
    folder = compared[0]
    out = folder / "out"
    before = {path: path.read_bytes() for path in (*(out / "records").iterdir(), out / "metrics.csv")}
    plan = parse_plan(PLAN, "plan.toml")
    request = Request(plan, folder / "cohort", METHOD_NAMES, 2, int(ROUNDS), trials=0, engine="vectorised")
    heard: list[tuple[str, int, int]] = []
    again = compare(request, out, 2, lambda *news: heard.append(news))
    jobs = 2 * len(METHOD_NAMES)
    assert heard == [("tuning", 0, 0), ("comparing", jobs, jobs)], "nothing was left to do"
    write_tables(again, out)
    assert {path: path.read_bytes() for path in before} == before
    other = parse_plan(PLAN.replace("learning_rate = 0.01", "learning_rate = 0.02"), "plan.toml")
    with pytest.raises(FedmapError, match="another study plan"):
        compare(replace(request, plan=other), out, 2, lambda *_: None)
    write_site(folder / "cohort" / "two.csv", 100, 77)
    with pytest.raises(FedmapError, match="other data"):
        compare(request, out, 2, lambda *_: None)
    assert {path: path.read_bytes() for path in before} == before
