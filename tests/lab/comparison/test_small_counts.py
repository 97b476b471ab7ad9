"""Small counts of rows do not stand in the tables of a comparison."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedmap.data.table.site_dataset import Exclusion
from fedmap.study.plan.study_plan import StudyPlan
from fedmap_lab.comparison.request import Request, identity_of
from fedmap_lab.comparison.results import Comparison, Job, JobResult, ScoreRecord
from fedmap_lab.comparison.tables import in_words, size, write_tables
from fedmap_lab.federation.sites import load_federation
from tests.lab.comparison.conftest import read
from tests.lab.conftest import MakeCohort

PARTS = ("train", "validation", "test")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 rows left out: no outcome", "fewer than 10 rows left out: no outcome"),
        ("one class only among 1 test row", "one class only among fewer than 10 test rows"),
        ("none of 9 test rows is followed up", "none of fewer than 10 test rows is followed up"),
        ("label: 3 of 500 values are missing", "label: fewer than 10 of 500 values are missing"),
        ("age: 2 missing values filled", "age: fewer than 10 missing values filled"),
        ("none of 10 test rows, 0 rows, 1 of 3 classes", "none of 10 test rows, 0 rows, 1 of 3 classes"),
    ],
)
def test_a_small_count_in_a_sentence_is_blurred_and_others_stay(text: str, said: str) -> None:
    assert in_words(text, 10) == said


def test_a_small_part_has_no_size() -> None:
    assert [size(count, 10) for count in (0, 1, 9, 10)] == [0, "", "", 10]


def test_sizes_reasons_and_notes_of_small_sites_are_written_without_their_counts(
    binary_plan: StudyPlan, make_cohort: MakeCohort, tmp_path: Path
) -> None:
    data = make_cohort({"one": (1, 60), "two": (1, 60), "clinic": (2, 30)})
    federation = load_federation(binary_plan, data)
    few = Exclusion("no outcome", 1)
    sites = tuple(replace(s, data=replace(s.data, exclusions=(few,))) for s in federation.sites)
    request = Request(binary_plan, data, ("fedavg",), seeds=1, rounds=1, trials=0, engine="vectorised")
    score = ScoreRecord(
        tier=2,
        site="clinic",
        region="",
        model="personal",
        metric="auroc",
        value=None,
        note="one class only among 6 test rows",
    )
    run = JobResult(job=Job(kind="run", method="fedavg", seed=0, rounds=1), outcome="done", scores=(score,))
    asked = (request, identity_of(request), replace(federation, sites=sites))
    write_tables(Comparison(*asked, {"fedavg": {}}, (), (run,), ()), tmp_path)
    one, _, clinic = sorted(read(tmp_path / "sites.csv"), key=lambda row: row["tier"])
    assert [int(one[part]) >= 10 for part in PARTS] == [True] * 3
    assert [clinic[part] for part in PARTS[1:]] == ["", ""]
    assert {row["note"] for row in read(tmp_path / "notes.csv")} >= {
        "fewer than 10 rows left out: no outcome"
    }
    assert [row["reason"] for row in read(tmp_path / "skipped.csv")] == [
        "one class only among fewer than 10 test rows"
    ]
