"""`fedmap-site`: the hospital's agent. Join a federation, agree to studies, train, and decide what leaves.

Exit codes: 0 done; 1 a FedMAP error, with its hint; 2 wrong usage (Typer's own); 3 doctor found a fault;
69 network, 74 storage, 78 configuration; 130 interrupted. docs/errors.md explains every code. Commands import
what is heavy (torch, pandas, gRPC) themselves, so that --help and a faulty file answer at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import typer

from fedmap.process.command_line import command, command_group, say, version_option
from fedmap.process.ending import run_program
from fedmap_site.cli.bundles.fetch import fetch_command
from fedmap_site.cli.bundles.predict import check_shift_command, personalise_command, predict_command
from fedmap_site.cli.bundles.serve import serve_bundles_command, serve_command
from fedmap_site.cli.bundles.shelf import (
    bundle_app,
    card_command,
    remove_command,
    trust_command,
    withdrawals_command,
)
from fedmap_site.cli.checks import check_config_command, check_data_command, doctor_command
from fedmap_site.cli.enrol import enrol_command
from fedmap_site.cli.outbox import audit_app, outbox_app, reject_command, release_command
from fedmap_site.cli.purge import deletion_app, purge_command
from fedmap_site.cli.run import health_command, round_app, run_command, status_command
from fedmap_site.cli.studies import approve_command, dry_run_command, leave_command, studies_command

app = command_group("The hospital's agent: nothing of a patient leaves, and what leaves is yours to release.")
app.callback()(version_option)
_COMMANDS: dict[typer.Typer, dict[str, Callable[..., None]]] = {
    app: {
        "enrol": enrol_command,
        "doctor": doctor_command,
        "check-config": check_config_command,
        "check-data": check_data_command,
        "studies": studies_command,
        "approve": approve_command,
        "leave": leave_command,
        "dry-run": dry_run_command,
        "run": run_command,
        "status": status_command,
        "health": health_command,
        "release": release_command,
        "reject": reject_command,
        "purge": purge_command,
        "serve-bundles": serve_bundles_command,
        "personalise": personalise_command,
        "predict": predict_command,
        "check-shift": check_shift_command,
        "serve": serve_command,
    },
    bundle_app: {
        "fetch": fetch_command,
        "card": card_command,
        "remove": remove_command,
        "trust": trust_command,
        "withdrawals": withdrawals_command,
    },
}
for group, commands in _COMMANDS.items():
    for name, run in commands.items():
        command(group, name)(run)
app.add_typer(outbox_app, name="outbox")
app.add_typer(audit_app, name="audit")
app.add_typer(deletion_app, name="deletion")
app.add_typer(round_app, name="round")
app.add_typer(bundle_app, name="bundle")


def main() -> None:
    """Entry point: FedMAP errors become one plain message and an exit code, never a stack trace."""
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its lines are no JSON, and each failure is logged here
    run_program(app, say)


if __name__ == "__main__":
    main()
