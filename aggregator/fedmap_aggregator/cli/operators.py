"""`fedmap-aggregator operator add | list | revoke`: on the aggregator's machine, with its authority's key."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from fedmap_aggregator.cli.output import (
    DEFAULT_CONFIG,
    Config,
    Json,
    answer,
    load_config,
    moment,
    print_json,
    print_text,
)

operator_app = typer.Typer(
    help="Who may lead the federation. Works on this machine only.",
    no_args_is_help=True,
    add_completion=False,
)
Name = Annotated[str, typer.Argument(help="The operator's name: lower-case letters, digits, - and _.")]


@operator_app.command("add")
def add_command(
    name: Name,
    out: Annotated[Path | None, typer.Option(help="Profile to write. Default: NAME.toml.")] = None,
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Make a profile for one more operator."""
    from fedmap_aggregator.identity.operators import make_operator
    from fedmap_aggregator.store.layout import open_store

    settings, path = load_config(config), out or Path(f"{name}.toml")
    with open_store(settings) as store:
        profile = make_operator(settings, store, name, path, datetime.now(UTC))
    if as_json:
        print_json({"operator": profile.name, "profile": str(path), "address": profile.address})
        return
    print_text(
        f"Wrote {path}: the profile of operator {profile.name}. It holds a private key.",
        "Hand it over in person or encrypted, and delete your copy. It is used with:",
        f"  fedmap-aggregator status --profile {path.name}",
    )


@operator_app.command("list")
def list_command(config: Config = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """List the operators and their certificates."""
    from fedmap_aggregator.identity.operators import list_operators
    from fedmap_aggregator.operator.status import add_row, plain_table
    from fedmap_aggregator.store.layout import open_store

    settings = load_config(config)
    with open_store(settings) as store:
        operators = list_operators(settings, store)
    if as_json:
        print_json(
            [
                {
                    "operator": operator.name,
                    "serial": operator.serial,
                    "certificate_ends_unix_ms": operator.ends_unix_ms,
                    "revoked_unix_ms": operator.revoked_unix_ms,
                }
                for operator in operators
            ]
        )
        return
    table = plain_table("operator", "certificate ends", "revoked", "serial")
    for operator in operators:
        revoked = moment(operator.revoked_unix_ms) if operator.revoked_unix_ms else ""
        add_row(table, operator.name, moment(operator.ends_unix_ms), revoked, operator.serial)
    answer.print(table)


@operator_app.command("revoke")
def revoke_command(name: Name, config: Config = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """Shut an operator out from the next call on."""
    from fedmap_aggregator.identity.operators import revoke_operator
    from fedmap_aggregator.store.layout import open_store

    settings = load_config(config)
    with open_store(settings) as store:
        count = revoke_operator(settings, store, name, datetime.now(UTC))
    if as_json:
        print_json({"operator": name, "revoked_certificates": count})
        return
    print_text(f"Operator {name} is shut out: {count} certificate(s) revoked.")
