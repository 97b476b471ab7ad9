"""`fedmap-aggregator study create | start | pause | resume | abort | results`: from plan to scores."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmap.errors import NotFoundError, StateError, UnreachableError
from fedmap.process.command_line import command, command_group, print_aside, say
from fedmap_aggregator.cli.options import Anywhere, Study, Yes
from fedmap_aggregator.operator.message_json import message_json

if TYPE_CHECKING:
    from fedmap.contract.v1 import values
    from fedmap_aggregator.operator.client import Action, OperatorClient

study_app = command_group("Create, start, pause, resume and abort studies.")
POLL_SECONDS = 1.0


@command(study_app, "create")
def create_command(
    given: Anywhere,
    plan: Annotated[Path, typer.Argument(help="Study plan (TOML).")],
    rounds: Annotated[int | None, typer.Option(min=1, help="Default: the plan's rounds.count.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of what is random in the study.")] = 0,
    site: Annotated[
        list[str] | None, typer.Option(help="A T1 site to invite; repeat for more. Default: all of them.")
    ] = None,
) -> None:
    """Put a study up for approval by its sites. Nothing trains before the start."""
    from fedmap.study.plan.reading import load_plan

    load_plan(plan)
    with given.connect() as client:
        created = client.create_study(plan.read_text(encoding="utf-8-sig"), rounds or 0, seed, site or ())
    given.tell(
        message_json(created),
        f"Study {created.study} is up for approval.",
        f"  sites  {', '.join(created.sites)}",
        f"  terms  {created.terms_digest}",
        "",
        "Each site reads the terms (`fedmap-site studies`) and approves exactly these:",
        f"  fedmap-site approve {created.terms_digest} --approver NAME",
        "",
        f"Then: fedmap-aggregator study start {created.study} --wait",
    )


@command(study_app, "start")
def start_command(
    given: Anywhere,
    study: Study,
    wait: Annotated[
        bool, typer.Option("--wait", help="First wait until every invited site has approved or left.")
    ] = False,
) -> None:
    """Start a study with the sites that have approved it. The others stay out of it."""
    _control(given, study, "start", wait)


@command(study_app, "pause")
def pause_command(given: Anywhere, study: Study) -> None:
    """Hold a study: answers are still taken, nothing new is asked."""
    _control(given, study, "pause")


@command(study_app, "resume")
def resume_command(given: Anywhere, study: Study) -> None:
    """Let a paused study go on where it was."""
    _control(given, study, "resume")


@command(study_app, "abort")
def abort_command(
    given: Anywhere,
    study: Study,
    yes: Yes = False,
) -> None:
    """End a study for good. What was computed so far is kept."""
    if not yes and not given.as_json:
        typer.confirm(f"End the study {study} for good?", abort=True)
    _control(given, study, "abort")


@command(study_app, "results")
def results_command(
    given: Anywhere,
    study: Study,
    out: Annotated[Path, typer.Option(help="Directory for metrics.csv, rounds.csv and summary.json.")],
    partial: Annotated[
        bool, typer.Option("--partial", help="Also before the end: what there is so far.")
    ] = False,
) -> None:
    """Write a study's scores by site, its rounds and a summary as files."""
    from fedmap_aggregator.operator.results import summary_of, write_results
    from fedmap_aggregator.operator.status import FINAL

    with given.connect() as client:
        status = status_of(client, study)
        sites = client.sites()
    if status.phase not in FINAL and not partial:
        raise StateError(
            f"the study {study} is not over: it is in the phase {status.phase}",
            hint=f"watch it with `fedmap-aggregator status {study} --watch`, or give --partial",
        )
    tiers = {site.name: site.tier for site in sites}
    write_results(status, tiers, out)
    given.tell(
        summary_of(status, tiers),
        f"Wrote metrics.csv, skipped.csv, rounds.csv, refusals.csv and summary.json to {out}",
    )


def status_of(client: OperatorClient, study: str) -> values.StudyStatus:
    """One study's status."""
    found = client.status(study).studies
    if len(found) != 1:
        raise NotFoundError(f"there is no study {study}", hint="`fedmap-aggregator status` lists all studies")
    return found[0]


def _control(given: Anywhere, study: str, action: Action, wait: bool = False) -> None:
    with given.connect() as client:
        if wait:
            _wait_for_approvals(client, study)
        phase = client.control(study, action)
    done = {"start": "started", "pause": "paused", "resume": "resumed", "abort": "aborted"}[action]
    given.tell(
        {"study": study, "action": action, "phase": phase},
        f"Study {study}: {done}. Phase: {phase}.",
        f"Watch it: fedmap-aggregator status {study} --watch" if action == "start" else None,
    )


def _wait_for_approvals(client: OperatorClient, study: str) -> None:
    """Until no approval is outstanding. A restart of the aggregator is waited for; Ctrl-C starts nothing."""
    said = ""
    with say.status(f"waiting for the sites of {study}") as spinner:
        while True:
            try:
                status = status_of(client, study)
            except UnreachableError:
                missing, text = ["?"], "the aggregator cannot be reached; trying again"
            else:
                missing = [m.site for m in status.members if m.membership == "invited"]
                text = f"waiting for the approval of {len(missing)} site(s): {', '.join(missing)}"
                if not missing or status.phase != "approvals":
                    return
            spinner.update(text)
            if text != said and not say.is_terminal:
                print_aside(text)
            said = text
            time.sleep(POLL_SECONDS)
