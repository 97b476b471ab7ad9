"""`fedmap-lab demo | leave-one-out`: federations of real processes on this machine."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from fedmap.metrics import metric_label
from fedmap.process.command_line import Json, answer, print_json, say
from fedmap_lab.cli.output import PLANS, Seed, bar, titled_table
from fedmap_lab.local.federation import LocalFederation, command_path

if TYPE_CHECKING:
    from fedmap_lab.local.tiers import TierResults

_NOT_MEASURED = "–"
_SHIFT = {
    "predict": "like the federation",
    "fine_tune": "different: fine-tune",
    "do_not_use": "too different",
    "": _NOT_MEASURED,
}


def demo_command(
    out: Annotated[Path, typer.Option(help="Where results, picture and logs go.")] = Path("out/demo"),
    plan: Annotated[Path, typer.Option(help="Study plan (TOML).")] = PLANS / "interval.toml",
    rounds: Annotated[int, typer.Option(min=1)] = 12,
) -> None:
    """Run all three tiers as real processes on this machine: training, fine-tuning, prediction."""
    from fedmap_lab.local.demo import run_demo
    from fedmap_lab.local.figures import draw_federation

    _end_cleanly()
    demo = run_demo(plan, out, rounds, lambda step: say.print(f"· {step}", highlight=False), _watch)
    draw_federation(demo, out / "federation.png")
    answer.print(tiers_table(demo))
    for site, report in demo.fine_tuned.items():
        answer.print(f"{escape(site)}: {escape(report.verdict)}", highlight=False)
    answer.print(
        f"Picture: [bold]{escape(str(out / 'federation.png'))}[/bold]. Results, the T2 centre's report and "
        f"the T3 centre's predictions: [bold]{escape(str(out))}[/bold]. All processes have ended; their keys "
        "and state are gone."
    )


def tiers_table(demo: TierResults) -> Table:
    """One line a site: the shared model, the site's own one, and what it did for it."""
    study = demo.study
    label = metric_label(study.metric)
    longest = max(map(len, (*study.sites, *demo.fine_tuned, *demo.predicted)), default=1)
    title = f"{escape(study.title)}: {label} on rows that nobody trained on"
    table = titled_table(title, ("site", "tier", "global model", "own model", "rows look"), longest)
    for site in study.sites:
        values = [study.value(site, model) for model in ("global", "personal")]
        shown = ("withheld" if value is None else f"{value:.3f}" for value in values)
        table.add_row(escape(site), "T1 trained", *shown, _NOT_MEASURED)
    for site, report in demo.fine_tuned.items():
        main = report.main
        shift = "" if report.shift is None else report.shift.verdict
        table.add_row(
            escape(site), "T2 fine-tuned", _shown(main.before), _shown(main.after), _SHIFT.get(shift, shift)
        )
    for site, predicted in demo.predicted.items():
        shift = _SHIFT.get(predicted.shift, predicted.shift)
        table.add_row(escape(site), "T3 predicted", _shown(predicted.figure), _NOT_MEASURED, shift)
    return table


def leave_one_out_command(
    plan: Annotated[Path, typer.Option(help="Study plan (TOML).")],
    data: Annotated[Path, typer.Option(help="Cohort directory: sites.csv and one file per site.")],
    out: Annotated[Path, typer.Option(help="Where the table and the reports go.")],
    rounds: Annotated[int | None, typer.Option(min=1, help="Default: the plan's rounds.count.")] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Train on all sites but one, then personalise and predict at that one; each site in turn."""
    from fedmap_lab.local.leave_one_out import leave_one_out

    _end_cleanly()
    with bar() as progress:
        task = progress.add_task("leaving out", total=None)
        found = leave_one_out(
            plan,
            data,
            out,
            rounds,
            seed,
            lambda site, done, of: progress.update(
                task, description=f"leaving out {site}" if site else "done", completed=done, total=of
            ),
        )
    if as_json:
        form = [
            {
                "site": one.site,
                "trained_at": one.trained_at,
                "personal": one.personal.model_dump(mode="json"),
                "predicted": {**asdict(one.predicted), "figure": _form(one.predicted.figure)},
            }
            for one in found
        ]
        print_json(form)
        return
    label = metric_label(found[0].personal.metric)
    columns = ("site", "T2 before", "T2 after", "difference", "T3, all rows", "rows look")
    title = f"{label} (95 % interval) at the site that stayed out"
    table = titled_table(title, columns, max(len(one.site) for one in found))
    for one in found:
        main = one.personal.main
        figures = (main.before, main.after, main.difference, one.predicted.figure)
        shift = _SHIFT.get(one.predicted.shift, one.predicted.shift)
        table.add_row(escape(one.site), *map(_shown, figures), shift)
    answer.print(table)
    answer.print(f"Table and reports in [bold]{escape(str(out))}[/bold]")


def _shown(figure: object) -> str:
    return _NOT_MEASURED if figure is None else str(figure)


def _form(figure: object) -> object:
    from fedmap_lab.local.tiers import Figure

    return figure.model_dump(mode="json") if isinstance(figure, Figure) else None


def _end_cleanly() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave by the door that ends the processes


def _watch(federation: LocalFederation, study: str) -> None:
    """The operator's own live view, in this terminal."""
    subprocess.run(
        [str(command_path("fedmap-aggregator")), "status", study, "--watch"],
        env=federation.environment("aggregator"),
        check=True,
    )
