"""`fedmap-lab`: make or import a cohort, simulate and compare on it, run federations of real processes.

Exit codes: 0 done; 1 a FedMAP error, with its hint; 2 wrong usage (Typer's own); 74 storage; 130 interrupted.
Commands import what is heavy (torch, scikit-learn, matplotlib) themselves, so that --help and a faulty plan
answer at once.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape
from rich.table import Table

from fedmap.errors import FedmapError
from fedmap.metrics import Metric, SkippedMetric, metric_label, shortfall
from fedmap.process.command_line import Json, answer, command_group, print_json, say, version_option
from fedmap.process.ending import run_program
from fedmap.study.plan.reading import load_plan
from fedmap_lab.cli.compare import compare_command, explain_command, report_command
from fedmap_lab.cli.federations import compose_app, demo_command, leave_one_out_command
from fedmap_lab.cli.output import Cohort, Plan, Rounds, Seed, bar, remark, show_excluded, titled_table
from fedmap_lab.methods.names import METHOD_NAMES

if TYPE_CHECKING:
    from fedmap_lab.simulation.results import SummaryRow
    from fedmap_lab.simulation.simulate import Study

app = command_group("The researcher's bench: cohorts and whole federations on one machine.")
app.callback()(version_option)
app.command("compare")(compare_command)
app.command("report")(report_command)
app.command("explain")(explain_command)
app.command("demo")(demo_command)
app.command("leave-one-out")(leave_one_out_command)
app.add_typer(compose_app, name="compose")


@app.command("cohort")
def cohort_command(
    name: Annotated[Literal["cprd", "interval", "eicu"], typer.Argument(help="Which synthetic cohort.")],
    out: Annotated[Path, typer.Option(help="Cohort directory to make.")],
    scale: Annotated[
        float,
        typer.Option(help="Share of the sites (interval: of the rows), above 0 and at most 10."),
    ] = 1.0,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Make a synthetic cohort with a known risk structure, and compare it with the published one."""
    from fedmap_lab.cohorts.making import make_cohort

    with bar() as progress:
        making = progress.add_task(f"making {name}", total=None)
        summary = make_cohort(
            name, out, scale, seed, lambda done, of: progress.update(making, completed=done, total=of)
        )
    rows = summary.heterogeneity.rows
    if as_json:
        print_json(json.loads((out / "cohort.json").read_text()))
        return
    title = f"{name}: {summary.rows} rows at {summary.sites} sites"
    table = titled_table(title, ("mean ± SD over sites", "target", "measured"))
    for row in rows:
        table.add_row(row.quantity, str(row.target), str(row.measured))
    answer.print(table)
    answer.print(
        f"Most predictive feature: {summary.heterogeneity.feature}. Cohort in [bold]{escape(str(out))}[/bold]"
    )


@app.command("import")
def import_command(
    name: Annotated[Literal["uci-heart", "tcga-brca", "eicu"], typer.Argument(help="Which public data set.")],
    source: Annotated[Path, typer.Option(help="Folder with the files as published.")],
    out: Annotated[Path, typer.Option(help="Cohort directory to make.")],
    by: Annotated[Literal["region", "hospital"], typer.Option(help="eicu: what a site is.")] = "region",
    as_json: Json = False,
) -> None:
    """Turn public files into a cohort directory. docs/eicu-loader.md has the eICU rules."""
    from fedmap_lab.cohorts.public_data import import_eicu, import_tcga_brca, import_uci_heart

    if name == "uci-heart":
        summary = import_uci_heart(source, out)
    elif name == "tcga-brca":
        summary = import_tcga_brca(source, out)
    else:
        summary = import_eicu(source, out, by)
    if as_json:
        sites = [
            {
                "site": s.site,
                "tier": s.tier,
                "region": s.region,
                "rows": s.rows,
                "exclusions": {e.reason: e.rows for e in s.exclusions},
            }
            for s in (*summary.sites, *summary.left_out)
        ]
        print_json({"out": str(out), "rows": summary.rows, "sites": sites})
        return
    title = f"{name}: {summary.rows} rows at {len(summary.sites)} sites"
    table = titled_table(title, ("site", "tier", "region", "rows"))
    for site in summary.sites:
        table.add_row(escape(site.site), str(site.tier), escape(site.region), str(site.rows))
    answer.print(table)
    every = (*summary.sites, *summary.left_out)
    asides = [f"{site.site}: {e.rows} left out, {e.reason}" for site in every for e in site.exclusions]
    asides += [f"left out: {e.rows} rows, {e.reason}" for e in summary.exclusions]
    for aside in (*asides, *summary.notes):
        say.print(escape(aside), highlight=False)


@app.command("simulate")
def simulate_command(
    plan: Plan,
    data: Cohort,
    out: Annotated[Path, typer.Option(help="Where the results go.")],
    engine: Annotated[
        Literal["loop", "vectorised"], typer.Option(help="vectorised trains all sites at once.")
    ] = "vectorised",
    method: Annotated[str, typer.Option(help="A method by name, as `compare` takes them.")] = "fedmap",
    rounds: Rounds = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Run a whole study in this process: T1 trains, T2 fine-tunes, T3 predicts."""
    study_plan = load_plan(plan)
    if method not in METHOD_NAMES:
        raise typer.BadParameter(f"choose among {', '.join(METHOD_NAMES)}", param_hint="--method")
    from fedmap_lab.federation.engines import make_engine
    from fedmap_lab.federation.sites import load_federation
    from fedmap_lab.local.figures import draw_convergence
    from fedmap_lab.methods.registry import METHODS
    from fedmap_lab.simulation.results import study_directory, write_study
    from fedmap_lab.simulation.simulate import simulate

    total = rounds or study_plan.rounds.count
    with study_directory(out) as fresh:
        with bar() as progress:
            loading = progress.add_task("loading sites", total=None)
            federation = load_federation(
                study_plan, data, lambda done, of: progress.update(loading, completed=done, total=of)
            )
            refusal = METHODS[method].refusal(study_plan, federation.settings)
            if refusal is not None:
                raise FedmapError(
                    f"{method} is not run under this plan: {refusal}", hint="choose another method"
                )
            training = progress.add_task(f"{method}, {len(federation.tier(1))} T1 sites", total=total)
            study = simulate(
                federation,
                METHODS[method],
                make_engine(engine),
                total,
                seed,
                lambda number: progress.update(training, completed=number),
            )
            progress.update(training, completed=total)
        write_study(study, fresh, method, engine, total, seed)
        draw_convergence(study, fresh / "convergence.png")
    _show_exclusions(study)
    if as_json:
        print_json(json.loads((out / "summary.json").read_text()))
        return
    answer.print(_summary_table(study))
    _show_where_the_global_model_did_better(study)
    answer.print(f"Results, models and convergence.png are in [bold]{escape(str(out))}[/bold]")


def main() -> None:
    """Entry point: FedMAP errors become one plain message and an exit code, never a stack trace."""
    run_program(app, say)


def _show_exclusions(study: Study) -> None:
    show_excluded(study.federation)
    for failure in study.failed:
        say.print(f"[yellow]failed[/yellow] round {failure.round}, {escape(failure.site)}: {failure.reason}")
    metric = study.federation.plan.task.metric
    skipped: dict[str, list[str]] = defaultdict(list)
    for s in study.scores:
        if isinstance(s.result, SkippedMetric) and s.result.name == metric:
            skipped[f"{s.model} model: {s.result.reason}"].append(s.site)
    for reason, sites in skipped.items():
        named = ", ".join(sites[:3]) + (f" and {len(sites) - 3} more" if len(sites) > 3 else "")
        remark("not scored", f"{named} ({reason})")


def _show_where_the_global_model_did_better(study: Study) -> None:
    """A site whose own model is worse than μ should know it. Judged without thresholds, which differ."""
    metric = "c_index" if study.federation.plan.task.kind == "cox" else "log_loss"
    values = {
        (s.site, s.model): shortfall(metric, s.result.value)
        for s in study.scores
        if s.tier < 3 and s.result.name == metric and isinstance(s.result, Metric)
    }
    both = [site for site, model in values if model == "personal" and (site, "global") in values]
    differ = [site for site in both if values[site, "global"] != values[site, "personal"]]
    worse = [site for site in differ if values[site, "global"] < values[site, "personal"]]
    if differ:
        label = metric_label(metric)
        answer.print(f"By {label}, the global model beat the site's own at {len(worse)} of {len(both)} sites")


def _summary_table(study: Study) -> Table:
    """Median and quartiles over sites, own and global model side by side; the plan's metric first."""
    from fedmap_lab.simulation.results import summarise

    metric = study.federation.plan.task.metric
    columns = ("tier", "metric", "site's own model", "global model")
    table = titled_table(escape(study.federation.plan.study.title), columns)
    rows = summarise(study.scores)
    for tier in (1, 2, 3):
        names = dict.fromkeys(row.metric for row in rows if row.tier == tier)
        for name in sorted(names, key=lambda name: name != metric):
            by_model = {row.model: row for row in rows if (row.tier, row.metric) == (tier, name)}
            table.add_row(
                f"T{tier}",
                metric_label(name),
                _cell(by_model.get("personal")),
                _cell(by_model.get("global")),
                style="bold" if name == metric else None,
            )
        table.add_section()
    return table


def _cell(row: SummaryRow | None) -> str:
    """Median (quartiles), and over how many sites where some were skipped."""
    if row is None:
        return "-"
    if not row.sites:
        return f"{row.skipped} skipped"
    spread = f" ({row.lower_quartile:.3f}–{row.upper_quartile:.3f})" if row.sites > 1 else ""
    note = f", {row.skipped} skipped" if row.skipped else ""
    return f"{row.median:.3f}{spread}{note}"


if __name__ == "__main__":
    main()
