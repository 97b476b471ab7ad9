"""`fedmap-site dry-run STUDY`: what would leave this site and what a round takes, and nothing is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fedmap.process.command_line import print_aside, print_json, print_table, print_text, say
from fedmap_site.cli.options import Here

if TYPE_CHECKING:
    from fedmap_site.loop.dry_run import DryRun

_MIB = 1 << 20


def dry_run_command(
    given: Here,
    study: Annotated[str, typer.Argument(help="Name of a study that this site has approved.")],
) -> None:
    """Do every kind of task of a study once, show what would leave, and send nothing."""
    settings = given.settings()
    from fedmap_site.wiring import Site, clock_ms, compute_on_one_thread

    compute_on_one_thread()
    from fedmap_site.loop.dry_run import rehearse

    site = Site(settings)

    def on_task(name: str) -> None:
        if say.is_terminal:
            print_aside(f"… {name}")

    done = rehearse(site.name, site.state, study, settings.data, site.policy(), clock_ms, on_task)
    site.audit.append("study.rehearsed", study, {"answers": str(len(done.answers))})
    if given.as_json:
        _print_json(study, done)
        return
    print_text(f"Dry run of {study} at {site.name}: one answer of each kind. Nothing was sent.")
    print_table(
        ("answer", "holds", "bytes", "seconds", "checks"),
        [
            (
                one.item.task_id,
                one.item.content,
                f"{one.item.manifest.answer_bytes + one.item.manifest.tensors_bytes:,}",
                f"{one.seconds:.1f}",
                _checks(done, one.item.id),
            )
            for one in done.answers
        ],
    )
    print_text(
        f"Reading the data took {done.load_seconds:.1f} s, a round {done.fit.seconds:.1f} s; "
        f"the study has {done.rounds} rounds.",
        f"Memory: {done.peak_bytes / _MIB:,.0f} MiB at most.",
        f"Read what would leave, and the files themselves: {done.fit.manifest_path}",
    )


def _checks(done: DryRun, item: str) -> str:
    """How many checks of the exit gate ended how."""
    (found,) = [one.item.manifest.checks for one in done.answers if one.item.id == item]
    outcomes = [check.outcome for check in found]
    return ", ".join(f"{outcomes.count(kind)} {kind}" for kind in dict.fromkeys(outcomes)) or "none needed"


def _print_json(study: str, done: DryRun) -> None:
    print_json(
        {
            "study": study,
            "sent": False,
            "folder": str(done.folder),
            "load_seconds": done.load_seconds,
            "round_seconds": done.fit.seconds,
            "rounds": done.rounds,
            "peak_bytes": done.peak_bytes,
            "answers": [
                {
                    "task": one.item.task_id,
                    "content": one.item.content,
                    "bytes": one.item.manifest.answer_bytes + one.item.manifest.tensors_bytes,
                    "seconds": one.seconds,
                    "manifest": str(one.manifest_path),
                }
                for one in done.answers
            ],
        }
    )
