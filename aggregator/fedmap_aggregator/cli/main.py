"""`fedmap-aggregator`: set up and run the central service, invite sites, lead studies, release bundles.

Exit codes: 0 done; 1 a FedMAP error, with its hint; 2 wrong usage (Typer's own); 3 doctor found a failure;
69 network, 74 storage, 78 configuration; 130 interrupted. docs/errors.md explains every code. Commands import
what is heavy (torch, SQLAlchemy, gRPC) themselves, so that --help and a faulty file answer at once.
"""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from fedmap.errors import UnreachableError
from fedmap.process.command_line import (
    DOCTOR_FOUND_A_FAULT,
    answer,
    command,
    command_group,
    print_aside,
    print_json,
    print_text,
    say,
    version_option,
)
from fedmap.process.ending import run_program
from fedmap.process.findings import any_failed
from fedmap_aggregator.cli.bundles import bundle_app
from fedmap_aggregator.cli.flower import import_flower_command
from fedmap_aggregator.cli.operators import operator_app
from fedmap_aggregator.cli.options import DEFAULT_CONFIG, Anywhere, ConfigFile, Here
from fedmap_aggregator.cli.rounds import round_app
from fedmap_aggregator.cli.sites import invite_command, revoke_command, sites_command
from fedmap_aggregator.cli.studies import POLL_SECONDS, study_app
from fedmap_aggregator.cli.upkeep import backup_command, deletion_app, purge_command, restore_command
from fedmap_aggregator.operator.message_json import message_json

app = command_group("The federation's centre: one command to set up, one to serve, the rest to lead studies.")
app.callback()(version_option)
audit_app = command_group("The tamper-evident log.")
app.add_typer(study_app, name="study")
app.add_typer(round_app, name="round")
command(bundle_app, "import-flower")(import_flower_command)
app.add_typer(bundle_app, name="bundle")
app.add_typer(operator_app, name="operator")
app.add_typer(audit_app, name="audit")
app.add_typer(deletion_app, name="deletion")
_HEALTH_SECONDS = 10.0


@command(app, "init")
def init_command(
    given: Here,
    address: Annotated[
        str, typer.Option(help="host:port as the sites will dial it; writes --config if there is none.")
    ] = "",
    state: Annotated[Path, typer.Option(help="State folder, for a new --config.")] = Path("state"),
    operator: Annotated[str, typer.Option(help="Name of the first operator.")] = "admin",
    if_missing: Annotated[
        bool,
        typer.Option("--if-missing", help="Change nothing where there is an identity: for start scripts."),
    ] = False,
) -> None:
    """Make the state folder with its certificate authority, server certificate and first operator."""
    from fedmap_aggregator.cli.config_file import write_first_config
    from fedmap_aggregator.identity.initialise import has_identity, initialise

    config = given.config
    if not config.exists():
        write_first_config(config, address, state)
        if not given.as_json:
            print_aside(f"Wrote {config}")
    settings = given.settings()
    if if_missing and has_identity(settings):
        given.tell(
            {"config": str(config), "state": str(settings.server.state), "made": False},
            f"{settings.server.state} holds an identity already; nothing was changed",
        )
        return
    made = initialise(settings, operator, datetime.now(UTC))
    files = {"joining_file": made.joining, "operator_profile": made.operator_profile}
    given.tell(
        {
            "config": str(config),
            "state": str(made.state),
            "made": True,
            "address": settings.server.address,
            "ca_fingerprint": made.ca_fingerprint,
            "release_key_fingerprint": made.release_fingerprint,
            **{name: str(path) if path else None for name, path in files.items()},
        },
        f"The aggregator of {settings.server.address} is set up in {made.state}",
        f"  CA fingerprint    {made.ca_fingerprint}",
        f"  release key       {made.release_fingerprint}",
        f"  joining file      {made.joining or 'none: certificates come from your own PKI'}",
        f"  operator profile  {made.operator_profile or 'none: have your PKI issue one'}",
        "Back up the state folder now: a lost authority shuts out every site.",
        "Next: fedmap-aggregator serve" + ("" if config == DEFAULT_CONFIG else f" --config {config}"),
    )


@app.command("serve")
def serve_command(config: ConfigFile = DEFAULT_CONFIG) -> None:
    """Run the aggregator until SIGTERM or Ctrl-C. Logs are JSON lines on standard error."""
    settings = Here(config=config).settings()
    from fedmap_aggregator.checkup.doctor import before_serving

    for finding in before_serving(settings, datetime.now(UTC)):
        print_text(f"{finding.verdict} {finding.name}: {finding.message}", f"  next: {finding.hint}")
    from fedmap_aggregator.wiring import serve

    serve(settings)


@command(app, "check-config")
def check_config_command(given: Here) -> None:
    """Check the configuration file: every fault at once. Touches nothing."""
    from fedmap_aggregator.cli.config_file import effective_settings

    settings = effective_settings(given.settings())
    given.tell(
        {"file": str(given.config), "settings": settings},
        f"{given.config} is in order. In effect:",
        *(f"  {key} = {json.dumps(value)}" for key, value in settings.items()),
    )


@command(app, "doctor")
def doctor_command(given: Anywhere) -> None:
    """Look for what is wrong, and name it. Changes nothing. Exit code 3 when something fails."""
    from fedmap_aggregator.checkup.doctor import examine, report_json, report_table

    found = examine(given.config, given.profile, datetime.now(UTC))
    given.tell(report_json(found), report_table(found))
    if any_failed(found):
        raise typer.Exit(DOCTOR_FOUND_A_FAULT)


@command(app, "health")
def health_command(given: Here) -> None:
    """Is the aggregator on this machine up? Exit code 1 if not. For health checks of containers."""
    from fedmap_aggregator.checkup.health import check_health

    try:
        finding = check_health(given.settings(), _HEALTH_SECONDS)
    except UnreachableError as error:  # engines know 0 and 1 of a health check
        if given.as_json:
            print_json({"healthy": False, "message": error.message, "hint": error.hint})
        else:
            print_aside(f"error ({error.code}): {error}")
        raise typer.Exit(1) from error
    given.tell({"healthy": True, "message": finding}, f"healthy: {finding}")


command(app, "invite")(invite_command)
command(app, "sites")(sites_command)
command(app, "revoke")(revoke_command)
command(app, "backup")(backup_command)
command(app, "restore")(restore_command)
command(app, "purge")(purge_command)


@command(app, "status")
def status_command(
    given: Anywhere,
    study: Annotated[str, typer.Argument(help="Name of a study; left out: all of them.")] = "",
    watch: Annotated[
        bool, typer.Option("--watch", help="Stay, and show every change; ends when the named study does.")
    ] = False,
) -> None:
    """Where studies stand: phase, rounds, who has answered, who is late, metrics."""
    from fedmap_aggregator.operator.watch import LineDisplay, LiveDisplay, follow, view_of

    with given.connect() as client:
        if not watch:
            response = client.status(study)
            given.tell(message_json(response), view_of(response, in_full=bool(study)))
            return

        def pause() -> None:
            time.sleep(POLL_SECONDS)

        if answer.is_terminal and not given.as_json:
            display = LiveDisplay(answer, in_full=bool(study))
            with display.live:
                follow(lambda: client.status(study), display, pause, until_over=bool(study))
        else:
            lines = LineDisplay(print_text, given.as_json)
            follow(lambda: client.status(study), lines, pause, until_over=bool(study))


@command(audit_app, "verify")
def audit_verify_command(given: Anywhere) -> None:
    """Check the hash chain of the audit log from its first entry."""
    with given.connect() as client:
        verified = client.verify_audit()
    given.tell(
        message_json(verified),
        f"The audit log is whole: {verified.entries} entries",
        f"  head  {verified.head}",
        "Keep the head somewhere else: a log that was cut short later no longer reaches it.",
    )


def main() -> None:
    """Entry point: FedMAP errors become one plain message and an exit code, never a stack trace."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its lines are no JSON, and each failure is logged here
    run_program(app, say)


if __name__ == "__main__":
    main()
