"""`fedmap-site outbox | release | reject | audit verify`: what would leave, who lets it, and the record."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from fedmap_site.cli.output import (
    DEFAULT_CONFIG,
    Approver,
    Config,
    Json,
    JsonValue,
    load_config,
    moment,
    print_json,
    print_table,
    print_text,
)

if TYPE_CHECKING:
    from pathlib import Path

    from fedmap_site.exit.item import OutboxItem
    from fedmap_site.wiring import Site

outbox_app = typer.Typer(help="Everything that has left, or waits to leave.", add_completion=False)
audit_app = typer.Typer(help="The tamper-evident log.", no_args_is_help=True, add_completion=False)

Item = Annotated[str, typer.Argument(help="Name of an item, as `fedmap-site outbox` shows it.")]
Study = Annotated[str, typer.Option("--study", help="Only items of this study.")]


@outbox_app.callback(invoke_without_command=True)
def outbox_command(
    context: typer.Context, study: Study = "", config: Config = DEFAULT_CONFIG, as_json: Json = False
) -> None:
    """Everything that has left, or waits to leave. Without a sub-command: list."""
    if context.invoked_subcommand is None:
        list_command(study, config, as_json)


@outbox_app.command("list")
def list_command(study: Study = "", config: Config = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """List the items, oldest first."""
    items = [item for item in _site(config).outbox.items() if study in ("", item.study)]
    if as_json:
        print_json({"items": [_facts(item) for item in items]})
        return
    if not items:
        print_text("The outbox is empty.")
        return
    print_table(
        ("item", "holds", "bytes", "state", "since", "by", "reason"),
        [
            (
                item.id,
                item.content,
                f"{item.manifest.tensors_bytes + item.manifest.answer_bytes:,}",
                item.status.state.replace("_", " "),
                moment(datetime.fromtimestamp(item.status.at_unix_ms / 1000, UTC)),
                item.status.by,
                item.status.reason,
            )
            for item in items
        ],
    )


@outbox_app.command("show")
def show_command(item: Item, config: Config = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """Show an item's manifest: every field, tensor and check."""
    import json

    found = _site(config).outbox.get(item)
    if as_json:
        print_json({**_facts(found), "manifest": json.loads(found.manifest.to_json())})
        return
    print_text(found.manifest_text().rstrip())
    print_text(f"State: {found.status.state.replace('_', ' ')}")


def release_command(
    approver: Approver,
    items: Annotated[list[str] | None, typer.Argument(help="Names of items.")] = None,
    study: Study = "",
    all_items: Annotated[
        bool, typer.Option("--all", help="Every item that waits (with --study: of it).")
    ] = False,
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Let answers go, after a look at their manifests. The running agent sends them within seconds."""
    if bool(items) == all_items or (study and not all_items):
        raise typer.BadParameter("give the names of items, or --all (with --study NAME for one study)")
    site = _site(config)
    names = items or [i.id for i in site.outbox.items("waiting_review") if study in ("", i.study)]
    released = [site.outbox.release(name, approver) for name in names]
    if as_json:
        print_json({"items": [_facts(item) for item in released]})
        return
    if not released:
        print_text("Nothing waits for a release.")
    for item in released:
        print_text(f"released {item.id} by {item.status.by}")


def reject_command(
    item: Item, approver: Approver, config: Config = DEFAULT_CONFIG, as_json: Json = False
) -> None:
    """Keep an answer back. The centre hears that it was withheld, and no more."""
    rejected = _site(config).outbox.reject(item, approver)
    if as_json:
        print_json(_facts(rejected))
        return
    print_text(f"rejected {rejected.id} by {rejected.status.by}; it stays here")


@audit_app.command("verify")
def verify_command(config: Config = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """Check the hash chain of this site's audit log from its first entry."""
    from fedmap_site.wiring import Site

    found = Site(load_config(config)).audit.verify()
    if as_json:
        print_json({"entries": found.entries, "head": found.head, "torn_bytes": found.torn_bytes})
        return
    print_text(
        f"{found.entries} entries, unbroken. Head: {found.head}",
        "Write the head down elsewhere: a log that was cut off at its end can only be told by it.",
    )
    if found.torn_bytes:
        print_text("A crash tore the last line; the next entry moves it aside and records that.")


def _site(config: Path) -> Site:
    from fedmap_site.wiring import Site

    return Site(load_config(config))


def _facts(item: OutboxItem) -> dict[str, JsonValue]:
    return {
        "id": item.id,
        "study": item.study,
        "task": item.task_id,
        "attempt": item.attempt,
        "content": item.content,
        "state": item.status.state,
        "at_unix_ms": item.status.at_unix_ms,
        "by": item.status.by,
        "code": item.status.code,
        "reason": item.status.reason,
        "answer_digest": item.answer_digest,
        "bytes": item.manifest.answer_bytes + item.manifest.tensors_bytes,
    }
