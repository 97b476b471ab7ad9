"""Writes the report of a comparison into its folder: statistics as CSV, figures, and report.html."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jinja2

from fedmap.files.durable import write_durably
from fedmap.metrics import metric_label
from fedmap_lab.report import page
from fedmap_lab.report.facts.reading import Facts, read_facts
from fedmap_lab.report.facts.statistics import Statistics, compute
from fedmap_lab.report.figures.equity import draw_regions, draw_subgroups
from fedmap_lab.report.figures.pictures import Drawn, in_style, save_pictures
from fedmap_lab.report.figures.prior import NO_MODELS, draw_prior, draw_prior_by_round
from fedmap_lab.report.figures.scores import draw_boxes, draw_calibration, draw_convergence
from fedmap_lab.report.figures.sites import draw_gain_against_alone, draw_sizes, draw_weights
from fedmap_lab.report.page.csv import write_statistics
from fedmap_lab.report.page.tables import equity_tables, hidden_equity, other_measures, tier_table
from fedmap_lab.report.page.verdict import judge
from fedmap_lab.report.prior.facts import PriorFacts, prior_facts
from fedmap_lab.report.prior.words import explain_layers, explain_sites

REPORT = "report.html"
FILES = (
    ("metrics.csv", "every figure: method, seed, tier, site, model, metric"),
    ("gains.csv", "methods against training alone and against FedMAP: gain, interval, tests"),
    ("who_gains.csv, who_gains_line.csv", "gain against individual performance: correlations, line and band"),
    ("equity.csv, equity_spread.csv", "by region and by column of the plan, small groups without figures"),
    ("calibration.csv, subgroups.csv", "calibration bins by tier; the metric by category at each site"),
    ("rounds.csv, omega.csv", "losses, penalties and validation figures by round; weights of the sites"),
    ("sites.csv, notes.csv", "sizes and outcome shares; what was left out, and why"),
    ("settings.csv, trials.csv", "hyperparameters of every method, and how they were chosen"),
    ("failures.csv, skipped.csv", "what did not run, diverged or could not be measured"),
    ("figures/", "every figure as PNG and PDF"),
    ("models/", "prior and T1 models of the first seed, for fedmap-lab explain"),
    ("comparison.json", "plan, digests, versions and the command"),
)


def write_report(out: Path, on_gap: Callable[[str], None] = lambda _: None) -> Path:
    """From the tables, the description and the models in OUT alone. Gives the page's path; `on_gap` hears
    what the page has to do without."""
    facts = read_facts(out)
    if facts.models_fault:
        on_gap(_without_models(facts))
    statistics = compute(facts)
    write_statistics(statistics, out)
    prior = None if facts.models is None else prior_facts(facts.models)
    with in_style():
        drawn = draw_all(facts, statistics, prior)
        shown = save_pictures(tuple(_with_reason(one, facts) for one in drawn), out / "figures")
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(page.__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = templates.get_template("report.html").render(
        description=facts.description,
        metric=metric_label(facts.metric),
        verdict=judge(facts, statistics),
        tiers=[tier_table(facts, statistics, one) for one in statistics.tiers],
        other_measures=[
            table for one in statistics.tiers if (table := other_measures(facts, one.tier)) is not None
        ],
        equity=equity_tables(statistics),
        hidden_equity=hidden_equity(statistics),
        figures={one.name: one for one in shown},
        prior_words=() if prior is None else tuple(explain_layers(prior)),
        site_words=() if prior is None else tuple(explain_sites(prior)),
        files=FILES,
    )
    write_durably(out / REPORT, text.encode(), mode=0o644)
    return out / REPORT


def _without_models(facts: Facts) -> str:
    return f"The figures of what the prior learned, by layer and by site, are left out: {facts.models_fault}."


def _with_reason(one: Drawn, facts: Facts) -> Drawn:
    """Models that were kept and cannot be used are not called models that were not kept."""
    if facts.models_fault and one.figure is None and one.words == NO_MODELS:
        return replace(one, words=f"{facts.models_fault}.")
    return one


def draw_all(facts: Facts, statistics: Statistics, prior: PriorFacts | None) -> tuple[Drawn, ...]:
    return (
        draw_boxes(facts),
        draw_gain_against_alone(facts, statistics),
        draw_regions(facts, statistics),
        draw_subgroups(facts, statistics),
        draw_sizes(facts),
        draw_weights(facts),
        draw_convergence(facts),
        draw_calibration(facts, statistics),
        draw_prior_by_round(facts.rounds),
        *draw_prior(prior),
    )
