"""`fedmap-aggregator study create | start | pause | resume | abort | results`: from plan to scores."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmap.errors import NotFoundError, StateError, UnreachableError
from fedmap_aggregator.cli.output import (
    DEFAULT_CONFIG,
    Config,
    Json,
    Profile,
    connect,
    print_json,
    print_text,
    say,
)

if TYPE_CHECKING:
    from fedmap.contract.v1 import operator_pb2 as pb
    from fedmap_aggregator.operator.client import Action, OperatorClient

study_app = typer.Typer(
    help="Create, start, pause, resume and abort studies.", no_args_is_help=True, add_completion=False
)
Study = Annotated[str, typer.Argument(help="Name of the study.")]
POLL_SECONDS = 1.0


@study_app.command("create")
def create_command(
    plan: Annotated[Path, typer.Argument(help="Study plan (TOML).")],
    rounds: Annotated[int | None, typer.Option(min=1, help="Default: the plan's rounds.count.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of what is random in the study.")] = 0,
    site: Annotated[
        list[str] | None, typer.Option(help="A T1 site to invite; repeat for more. Default: all of them.")
    ] = None,
    profile: Profile = None,
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Put a study up for approval by its sites. Nothing trains before the start."""
    from fedmap.study.plan import load_plan
    from fedmap_aggregator.operator.message_json import message_json

    load_plan(plan)
    with connect(profile, config) as client:
        created = client.create_study(plan.read_text(encoding="utf-8-sig"), rounds or 0, seed, site or ())
    if as_json:
        print_json(message_json(created))
        return
    print_text(
        f"Study {created.study} is up for approval.",
        f"  sites  {', '.join(created.sites)}",
        f"  terms  {created.terms_digest}",
        "",
        "Each site reads the terms (`fedmap-site studies`) and approves exactly these:",
        f"  fedmap-site approve {created.terms_digest} --approver NAME",
        "",
        f"Then: fedmap-aggregator study start {created.study} --wait",
    )


@study_app.command("start")
def start_command(
    study: Study,
    wait: Annotated[
        bool, typer.Option("--wait", help="First wait until every invited site has approved or left.")
    ] = False,
    profile: Profile = None,
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Start a study with the sites that have approved it. The others stay out of it."""
    with connect(profile, config) as client:
        if wait:
            _wait_for_approvals(client, study)
        _control(client, study, "start", as_json)


@study_app.command("pause")
def pause_command(
    study: Study, profile: Profile = None, config: Config = DEFAULT_CONFIG, as_json: Json = False
) -> None:
    """Hold a study: answers are still taken, nothing new is asked."""
    with connect(profile, config) as client:
        _control(client, study, "pause", as_json)


@study_app.command("resume")
def resume_command(
    study: Study, profile: Profile = None, config: Config = DEFAULT_CONFIG, as_json: Json = False
) -> None:
    """Let a paused study go on where it was."""
    with connect(profile, config) as client:
        _control(client, study, "resume", as_json)


@study_app.command("abort")
def abort_command(
    study: Study,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    profile: Profile = None,
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """End a study for good. What was computed so far is kept."""
    if not yes and not as_json:
        typer.confirm(f"End the study {study} for good?", abort=True)
    with connect(profile, config) as client:
        _control(client, study, "abort", as_json)


@study_app.command("results")
def results_command(
    study: Study,
    out: Annotated[Path, typer.Option(help="Directory for metrics.csv, rounds.csv and summary.json.")],
    partial: Annotated[
        bool, typer.Option("--partial", help="Also before the end: what there is so far.")
    ] = False,
    profile: Profile = None,
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Write a study's scores by site, its rounds and a summary as files."""
    from fedmap_aggregator.operator.results import summary_of, write_results
    from fedmap_aggregator.operator.status import FINAL

    with connect(profile, config) as client:
        status = status_of(client, study)
        sites = client.sites()
    if status.phase not in FINAL and not partial:
        raise StateError(
            f"the study {study} is not over: it is in the phase {status.phase}",
            hint=f"watch it with `fedmap-aggregator status {study} --watch`, or give --partial",
        )
    tiers = {site.name: site.tier for site in sites}
    write_results(status, tiers, out)
    if as_json:
        print_json(summary_of(status, tiers))
        return
    print_text(f"Wrote metrics.csv, skipped.csv, rounds.csv, refusals.csv and summary.json to {out}")


def status_of(client: OperatorClient, study: str) -> pb.StudyStatus:
    """One study's status."""
    found = client.status(study).studies
    if len(found) != 1:
        raise NotFoundError(f"there is no study {study}", hint="`fedmap-aggregator status` lists all studies")
    return found[0]


def _control(client: OperatorClient, study: str, action: Action, as_json: bool) -> None:
    phase = client.control(study, action)
    if as_json:
        print_json({"study": study, "action": action, "phase": phase})
        return
    done = {"start": "started", "pause": "paused", "resume": "resumed", "abort": "aborted"}[action]
    print_text(f"Study {study}: {done}. Phase: {phase}.")
    if action == "start":
        print_text(f"Watch it: fedmap-aggregator status {study} --watch")


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
                say.print(text, markup=False, highlight=False, soft_wrap=True)
            said = text
            time.sleep(POLL_SECONDS)
