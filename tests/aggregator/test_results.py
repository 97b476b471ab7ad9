from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedmap.contract.v1 import values
from fedmap.errors import ConflictError
from fedmap_aggregator.operator.message_json import message_json
from fedmap_aggregator.operator.results import summary_of, write_results

TIERS = {"alpha": 1, "beta": 1}


def study(name: str = "iron") -> values.StudyStatus:
    return values.StudyStatus(
        study=name,
        phase="complete",
        rounds=2,
        metric="auroc",
        members=(
            values.MemberStatus(site="alpha", membership="approved"),
            values.MemberStatus(site="beta", membership="approved"),
            values.MemberStatus(site="gamma", membership="left", reason="withdrew"),
        ),
        history=(values.RoundStatus(1, 2, 2, 0.5, closed_unix_ms=1_700_000_000_000),),
        scores=(
            values.SiteScore(site="alpha", region="North", model="personal", metric="auroc", value=0.8),
            values.SiteScore(site="alpha", region="North", model="global", metric="auroc", value=0.7),
            values.SiteScore(site="beta", region="South", model="personal", metric="auroc", value=0.9),
            values.SiteScore(
                site="beta", region="South", model="global", metric="auroc", note="below the floor"
            ),
        ),
        refusals=(values.Refusal("beta", "round-1", "rejected", "=cmd()", 1),),
    )


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_files_hold_what_a_spreadsheet_and_the_lab_expect(tmp_path: Path) -> None:
    told = study()
    told = replace(told, history=(replace(told.history[0], absent=("north", "south")),))
    write_results(told, TIERS, tmp_path / "out")
    metrics, (skipped,), (closed,), (refusal,) = (
        rows(tmp_path / "out" / f"{name}.csv") for name in ("metrics", "skipped", "rounds", "refusals")
    )
    assert list(metrics[0]) == ["tier", "site", "region", "metric", "value"]
    assert [(row["site"], row["metric"], row["value"]) for row in metrics] == [
        ("alpha", "auroc", "0.8"),
        ("alpha", "auroc_global", "0.7"),
        ("beta", "auroc", "0.9"),
    ]
    assert list(skipped.values())[1:] == ["beta", "South", "auroc_global", "below the floor"]
    assert (closed["loss"], closed["validation_loss"]) == ("0.5", "")  # what is absent is left empty
    assert (closed["answered"], closed["absent"]) == ("2", "north south")  # counted by an earlier update
    assert closed["closed_at"] == "2023-11-14T22:13:20+00:00"
    assert refusal["reason"] == "'=cmd()"  # no formula
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary == summary_of(told, TIERS)
    assert summary["sites"] == ["alpha", "beta"]
    assert summary["excluded_sites"] == [{"site": "gamma", "membership": "left", "reason": "withdrew"}]
    own, shared = summary["summary"]
    assert (own["model"], own["sites"], own["median"]) == ("personal", 2, pytest.approx(0.85))
    assert (shared["sites"], shared["skipped"]) == (1, 1)


def test_results_of_the_same_study_are_replaced_and_others_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_results(study(), TIERS, out)
    write_results(study(), TIERS, out)
    with pytest.raises(ConflictError, match="something other"):
        write_results(study("other"), TIERS, out)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(ConflictError):
        write_results(study(), TIERS, tmp_path / "mine")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"


def test_a_study_without_scores_gives_empty_tables_and_no_nan(tmp_path: Path) -> None:
    write_results(values.StudyStatus(study="young", phase="aborted"), {}, tmp_path / "out")
    assert rows(tmp_path / "out" / "metrics.csv") == []
    assert "NaN" not in (tmp_path / "out" / "summary.json").read_text()


def test_json_of_a_message_has_numbers_as_numbers_and_absent_as_null() -> None:
    value: Any = message_json(values.GetStatusResponse((study(),), 5))
    assert json.loads(json.dumps(value)) == value
    assert value["time_unix_ms"] == 5
    assert value["studies"][0]["scores"][3]["value"] is None
    assert message_json(values.ImportDropResponse(reply=b"\x00\xff"))["reply"] == "AP8="
