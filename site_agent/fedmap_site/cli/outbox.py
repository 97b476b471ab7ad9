"""`fedmap-site outbox | release | reject | audit verify`: what would leave, who lets it, and the record."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from fedmap.process.command_line import JsonValue, WholeTable, command, command_group, moment, with_options
from fedmap_site.cli.options import Approver, Here

if TYPE_CHECKING:
    from fedmap_site.exit.item import OutboxItem

outbox_app = typer.Typer(help="Everything that has left, or waits to leave.", add_completion=False)
audit_app = command_group("The tamper-evident log.")

Item = Annotated[str, typer.Argument(help="Name of an item, as `fedmap-site outbox` shows it.")]
Study = Annotated[str, typer.Option("--study", help="Only items of this study.")]


@command(outbox_app, "list")
def list_command(given: Here, study: Study = "") -> None:
    """List the items, oldest first."""
    items = [item for item in given.site().outbox.items() if study in ("", item.study)]
    table = WholeTable(
        ("item", "holds", "bytes", "state", "since", "by", "reason"),
        [
            (
                item.id,
                item.content,
                f"{item.manifest.tensors_bytes + item.manifest.answer_bytes:,}",
                item.status.state.replace("_", " "),
                moment(item.status.at_unix_ms),
                item.status.by,
                item.status.reason,
            )
            for item in items
        ],
    )
    given.tell({"items": [_facts(item) for item in items]}, table if items else "The outbox is empty.")


def outbox_command(given: Here, context: typer.Context, study: Study = "") -> None:
    """Everything that has left, or waits to leave. Without a sub-command: list."""
    if context.invoked_subcommand is None:
        list_command(given, study)


outbox_app.callback(invoke_without_command=True)(with_options(outbox_command))


@command(outbox_app, "show")
def show_command(given: Here, item: Item) -> None:
    """Show an item's manifest: every field, tensor and check."""
    found = given.site().outbox.get(item)
    given.tell(
        {**_facts(found), "manifest": json.loads(found.manifest.to_json())},
        found.manifest_text().rstrip(),
        f"State: {found.status.state.replace('_', ' ')}",
    )


def release_command(
    given: Here,
    approver: Approver,
    items: Annotated[list[str] | None, typer.Argument(help="Names of items.")] = None,
    study: Study = "",
    all_items: Annotated[
        bool, typer.Option("--all", help="Every item that waits (with --study: of it).")
    ] = False,
) -> None:
    """Let answers go, after a look at their manifests. The running agent sends them within seconds."""
    if bool(items) == all_items or (study and not all_items):
        raise typer.BadParameter("give the names of items, or --all (with --study NAME for one study)")
    outbox = given.site().outbox
    names = items or [i.id for i in outbox.items("waiting_review") if study in ("", i.study)]
    released = [outbox.release(name, approver) for name in names]
    given.tell(
        {"items": [_facts(item) for item in released]},
        None if released else "Nothing waits for a release.",
        *(f"released {item.id} by {item.status.by}" for item in released),
    )


def reject_command(given: Here, item: Item, approver: Approver) -> None:
    """Keep an answer back. The centre hears that it was withheld, and no more."""
    rejected = given.site().outbox.reject(item, approver)
    given.tell(_facts(rejected), f"rejected {rejected.id} by {rejected.status.by}; it stays here")


@command(audit_app, "verify")
def verify_command(given: Here) -> None:
    """Check the hash chain of this site's audit log from its first entry."""
    found = given.site().audit.verify()
    torn = "A crash tore the last line; the next entry moves it aside and records that."
    given.tell(
        {"entries": found.entries, "head": found.head, "torn_bytes": found.torn_bytes},
        f"{found.entries} entries, unbroken. Head: {found.head}",
        "Write the head down elsewhere: a log that was cut off at its end can only be told by it.",
        torn if found.torn_bytes else None,
    )


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
