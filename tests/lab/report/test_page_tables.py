"""The cells of the report's tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmap_lab.report.facts.reading import read_facts
from fedmap_lab.report.facts.statistics import compute
from fedmap_lab.report.page.tables import PageTable, equity_tables, tier_table
from tests.lab.report.made_out import MadeOut, MadeSite, write_out

NAMES = tuple(f"hospital-{number}" for number in range(8))


def first_tier(out: Path, seeds: int) -> PageTable:
    values = {
        method: {name: (0.6 + 0.01 * number + shift,) * seeds for number, name in enumerate(NAMES)}
        for method, shift in (("individual", 0.0), ("pooled", 0.05), ("fedavg", 0.02), ("fedmap", 0.03))
    }
    facts = read_facts(write_out(out, MadeOut({name: MadeSite(1) for name in NAMES}, values)))
    statistics = compute(facts)
    return tier_table(facts, statistics, statistics.tiers[0])


def test_a_range_over_seeds_is_given_only_where_there_are_several(tmp_path: Path) -> None:
    several, one = first_tier(tmp_path / "several", seeds=2), first_tier(tmp_path / "one", seeds=1)
    assert "range over seeds" in several.head
    assert "range over seeds" not in one.head
    for table in (several, one):
        assert {len(row.cells) for row in table.rows} == {len(table.head) - 1}


def test_a_p_that_is_not_corrected_is_marked(tmp_path: Path) -> None:
    table = first_tier(tmp_path / "out", seeds=1)
    last = {row.label: row.cells[-1] for row in table.rows}
    assert last["Pooled (oracle)"].endswith("*")
    assert not last["FedAvg"].endswith("*")


@pytest.mark.parametrize(("gain", "word"), [(0.0001, "stayed the same"), (0.002, "rose"), (-0.002, "fell")])
def test_a_spread_falls_or_rises_only_where_its_figures_do(tmp_path: Path, gain: float, word: str) -> None:
    sites = {name: MadeSite(1, "North" if number < 4 else "West") for number, name in enumerate(NAMES)}
    alone = {name: 0.7 if site.region == "North" else 0.6 for name, site in sites.items()}
    fedmap = {name: value + (gain if value > 0.65 else 0.0) for name, value in alone.items()}
    values = {m: {n: (v,) for n, v in of.items()} for m, of in (("individual", alone), ("fedmap", fedmap))}
    (table,) = equity_tables(compute(read_facts(write_out(tmp_path / "out", MadeOut(sites, values)))))
    assert f"The spread from best to worst group {word}: 0.100 alone" in table.note
