"""Each site in turn stays out of the federation, and then lives on its bundles: T2 fine-tunes, T3 predicts.

The honest figure for a hospital that did not train: the others train as real processes, the model is released
and signed, and the site that stayed out personalises and predicts by its own commands. With few sites no
test between tiers is possible; the intervals are over the rows of each site.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedmap.data.cohort_directory import read_cohort_directory
from fedmap.errors import DataError
from fedmap.study.plan.reading import load_plan
from fedmap_lab.local.federation import LocalFederation, LocalSite
from fedmap_lab.local.study import run_study
from fedmap_lab.local.tiers import (
    Figure,
    PersonalReport,
    Predicted,
    downloads_toml,
    personalise,
    predict,
    release,
)
from fedmap_lab.tables import Row, write_table

_WITH_INTERVAL = ("t2_before", "t2_after", "t2_difference")
COLUMNS = (
    *("site", "trained_at", "metric"),
    *(f"{figure}{end}" for figure in _WITH_INTERVAL for end in ("", "_low", "_high")),
    *("t2_outcome", "t3_rows", "t3", "t3_low", "t3_high", "shift"),
)


@dataclass(frozen=True)
class HeldOut:
    """What one site got from a federation that never saw it."""

    site: str
    trained_at: tuple[str, ...]
    personal: PersonalReport
    predicted: Predicted


def leave_one_out(
    plan: Path, data: Path, out: Path, rounds: int | None, seed: int, on_site: Callable[[str, int, int], None]
) -> tuple[HeldOut, ...]:
    """All sites of a cohort directory, one after the other. Writes `out/tiers.csv` and every report."""
    study_plan = load_plan(plan)
    entries = read_cohort_directory(data)
    if len(entries) <= study_plan.rounds.quorum:
        raise DataError(
            data.name,
            (f"{len(entries)} sites: without one of them the quorum is missed",),
            hint="give more sites, or lower rounds.quorum in the plan",
        )
    count = study_plan.rounds.count if rounds is None else rounds
    held_out: list[HeldOut] = []
    for number, entry in enumerate(entries):
        on_site(entry.site, number, len(entries))
        folder, results = out / "work" / entry.site, out / entry.site
        for old in (folder, results):
            shutil.rmtree(old, ignore_errors=True)
        training = [LocalSite(e.site, e.region, e.path) for e in entries if e.site != entry.site]
        with LocalFederation(folder, aggregator_toml=downloads_toml()) as federation:
            study = run_study(federation, plan, training, count, seed, lambda _: None)
            t2 = LocalSite(entry.site, entry.region, entry.path, tier=2)
            bundles = {tier: release(federation, study.study, tier) for tier in (2, 3)}
            personal = personalise(federation, t2, bundles[2], results / "personal")
            predicted = predict(
                federation, study_plan, t2, bundles[3], results / "predictions" / f"{entry.site}.csv"
            )
        held_out.append(HeldOut(entry.site, tuple(site.name for site in training), personal, predicted))
        shutil.rmtree(folder)
    shutil.rmtree(out / "work")
    on_site("", len(entries), len(entries))
    write_table(out / "tiers.csv", COLUMNS, map(_row, held_out))
    return tuple(held_out)


def _row(one: HeldOut) -> Row:
    main = one.personal.main
    figures = (main.before, main.after, main.difference)
    return (
        *(one.site, " ".join(one.trained_at), main.metric),
        *(cell for figure in figures for cell in _cells(figure)),
        *(one.personal.outcome, one.predicted.rows, *_cells(one.predicted.figure), one.predicted.shift),
    )


def _cells(figure: Figure | None) -> Row:
    return (None, None, None) if figure is None else (figure.value, figure.low, figure.high)
