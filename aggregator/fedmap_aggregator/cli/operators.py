"""`fedmap-aggregator operator add | list | revoke`: on the aggregator's machine, with its authority's key."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from fedmap.process.command_line import PlainTable, command, command_group, moment
from fedmap_aggregator.cli.options import Here

operator_app = command_group("Who may lead the federation. Works on this machine only.")
Name = Annotated[str, typer.Argument(help="The operator's name: lower-case letters, digits, - and _.")]


@command(operator_app, "add")
def add_command(
    given: Here,
    name: Name,
    out: Annotated[Path | None, typer.Option(help="Profile to write. Default: NAME.toml.")] = None,
) -> None:
    """Make a profile for one more operator."""
    from fedmap_aggregator.identity.operators import make_operator
    from fedmap_aggregator.store.layout import open_store

    settings, path = given.settings(), out or Path(f"{name}.toml")
    with open_store(settings) as store:
        profile = make_operator(settings, store, name, path, datetime.now(UTC))
    given.tell(
        {"operator": profile.name, "profile": str(path), "address": profile.address},
        f"Wrote {path}: the profile of operator {profile.name}. It holds a private key.",
        "Hand it over in person or encrypted, and delete your copy. It is used with:",
        f"  fedmap-aggregator status --profile {path.name}",
    )


@command(operator_app, "list")
def list_command(given: Here) -> None:
    """List the operators and their certificates."""
    from fedmap_aggregator.identity.operators import list_operators
    from fedmap_aggregator.store.layout import open_store

    settings = given.settings()
    with open_store(settings) as store:
        operators = list_operators(settings, store)
    rows = [
        (one.name, moment(one.ends_unix_ms), moment(one.revoked_unix_ms or 0).removeprefix("-"), one.serial)
        for one in operators
    ]
    given.tell(
        [
            {
                "operator": one.name,
                "serial": one.serial,
                "certificate_ends_unix_ms": one.ends_unix_ms,
                "revoked_unix_ms": one.revoked_unix_ms,
            }
            for one in operators
        ],
        PlainTable(("operator", "certificate ends", "revoked", "serial"), rows),
    )


@command(operator_app, "revoke")
def revoke_command(given: Here, name: Name) -> None:
    """Shut an operator out from the next call on."""
    from fedmap_aggregator.identity.operators import revoke_operator
    from fedmap_aggregator.store.layout import open_store

    settings = given.settings()
    with open_store(settings) as store:
        count = revoke_operator(settings, store, name, datetime.now(UTC))
    given.tell(
        {"operator": name, "revoked_certificates": count},
        f"Operator {name} is shut out: {count} certificate(s) revoked.",
    )
