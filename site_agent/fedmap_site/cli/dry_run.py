"""`fedmap-site dry-run STUDY`: what would leave this site and what a round takes, and nothing is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fedmap.process.command_line import WholeTable, print_aside, say
from fedmap_site.cli.options import Here

if TYPE_CHECKING:
    from fedmap_site.loop.dry_run import Rehearsed

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
    given.tell(
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
                    "bytes": _size(one),
                    "seconds": one.seconds,
                    "manifest": str(one.manifest_path),
                }
                for one in done.answers
            ],
        },
        f"Dry run of {study} at {site.name}: one answer of each kind. Nothing was sent.",
        WholeTable(
            ("answer", "holds", "bytes", "seconds", "checks"),
            [
                (one.item.task_id, one.item.content, f"{_size(one):,}", f"{one.seconds:.1f}", _checks(one))
                for one in done.answers
            ],
        ),
        f"Reading the data took {done.load_seconds:.1f} s, a round {done.fit.seconds:.1f} s; "
        f"the study has {done.rounds} rounds.",
        f"Memory: {done.peak_bytes / _MIB:,.0f} MiB at most.",
        f"Read what would leave, and the files themselves: {done.fit.manifest_path}",
    )


def _size(one: Rehearsed) -> int:
    return one.item.manifest.answer_bytes + one.item.manifest.tensors_bytes


def _checks(one: Rehearsed) -> str:
    """How many checks of the exit gate ended how."""
    outcomes = [check.outcome for check in one.item.manifest.checks]
    return ", ".join(f"{outcomes.count(kind)} {kind}" for kind in dict.fromkeys(outcomes)) or "none needed"
