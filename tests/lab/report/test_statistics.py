"""The statistics of a made comparison, against values worked by hand."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fedmap_lab.report.facts.reading import read_facts
from fedmap_lab.report.facts.statistics import compute
from fedmap_lab.report.page.csv import write_statistics
from tests.lab.report.made_out import MadeOut, MadeSite, write_out

REGIONS = ("north", "north", "north", "south", "south", "south", "east")
NAMES = tuple(f"s{number}" for number in range(7))
ALONE = (0.60, 0.62, 0.64, 0.70, 0.72, 0.74, 0.76)
GAINS = (0.10, 0.08, 0.06, 0.03, 0.02, 0.01, -0.01)
MADE = MadeOut(
    sites={name: MadeSite(1, region) for name, region in zip(NAMES, REGIONS, strict=True)}
    | {"clinic": MadeSite(2), "remote": MadeSite(3)},
    values={
        "individual": {n: (a - 0.01, a + 0.01) for n, a in zip(NAMES, ALONE, strict=True)}
        | {"clinic": (0.5,)},
        "fedavg": {n: (a + 0.05,) for n, a in zip(NAMES, ALONE, strict=True)} | {"remote": (0.8,)},
        "fedmap": {n: (a + g,) for n, a, g in zip(NAMES, ALONE, GAINS, strict=True)}
        | {"clinic": (0.6,), "remote": (0.7,)},
    },
    subgroups=[
        (method, 1, name, "sex", category, value + shift)
        for method, shift in (("individual", 0.0), ("fedmap", 0.04))
        for category, value in (("F", 0.7), ("M", 0.6))
        for name in (NAMES[:4] if category == "F" else NAMES[:2])
    ],
)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = write_out(tmp_path_factory.mktemp("made") / "out", MADE)
    write_statistics(compute(read_facts(out)), out)
    return out


def find(out: Path, name: str, **wanted: str) -> dict[str, str]:
    with (out / name).open(newline="") as file:
        (row,) = [
            row for row in csv.DictReader(file) if all(row[key] == value for key, value in wanted.items())
        ]
    return row


def test_gains_over_training_alone_are_those_worked_by_hand(out: Path) -> None:
    row = find(out, "gains.csv", tier="1", method="fedmap", reference="individual")
    assert int(row["sites"]) == 7
    assert float(row["median_gain"]) == pytest.approx(0.03)
    assert float(row["improved"]) == pytest.approx(6 / 7)
    assert float(row["reference_median"]) == pytest.approx(0.70), "a site counts with its mean over seeds"
    # Ranks of |gain|: 0.01 twice (1.5 each), 2, 3 …; the only loss has rank 1.5.
    assert 0.015 < float(row["p"]) < 0.06
    assert float(row["low"]) <= 0.03 <= float(row["high"])
    assert float(row["p_holm"]) >= float(row["p"])


def test_every_method_is_held_against_fedmap_too_at_t3_where_nobody_trains_alone(out: Path) -> None:
    row = find(out, "gains.csv", tier="3", method="fedavg")
    assert row["reference"] == "fedmap"
    assert float(row["median_gain"]) == pytest.approx(0.1)
    assert "no test is possible" in row["note"]
    assert row["p"] == ""


def test_one_site_of_a_tier_gives_a_gain_and_no_interval(out: Path) -> None:
    row = find(out, "gains.csv", tier="2", method="fedmap", reference="individual")
    assert float(row["median_gain"]) == pytest.approx(0.1)
    assert (row["low"], row["high"], row["p_holm"]) == ("", "", "")


def test_weak_sites_gain_most_shows_in_who_gains(out: Path) -> None:
    row = find(out, "who_gains.csv", tier="1", method="fedmap")
    assert float(row["spearman"]) == pytest.approx(-1.0)
    assert float(row["slope"]) < 0
    with (out / "who_gains_line.csv").open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["method"] == "fedmap"]
    assert all(float(line["low"]) <= float(line["line"]) <= float(line["high"]) for line in lines)
    assert "too few" in find(out, "who_gains.csv", tier="2", method="fedmap")["note"]


def test_spread_between_regions_before_and_after_and_a_region_of_one_site_is_hidden(out: Path) -> None:
    spread = find(out, "equity_spread.csv", by="region", tier="1", method="fedmap")
    assert float(spread["spread_before"]) == pytest.approx(0.72 - 0.62)
    assert float(spread["spread_after"]) == pytest.approx(0.74 - 0.70)
    assert (spread["groups"], spread["hidden"]) == ("3", "1")
    east = find(out, "equity.csv", by="region", method="fedmap", group="east")
    assert (east["sites"], east["before"], east["after"]) == ("", "", "")


def test_a_category_at_two_sites_is_hidden_and_one_at_four_is_shown(out: Path) -> None:
    women = find(out, "equity.csv", by="sex", method="fedmap", group="F")
    assert (women["sites"], women["improved"]) == ("4", "1.0")
    assert float(women["median_gain"]) == pytest.approx(0.04)
    assert find(out, "equity.csv", by="sex", method="fedmap", group="M")["before"] == ""
