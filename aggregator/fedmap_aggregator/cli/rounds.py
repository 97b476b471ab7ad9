"""`fedmap-aggregator round export | import`: rounds that travel as files, for sites without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmap_aggregator.cli.output import (
    DEFAULT_CONFIG,
    Config,
    Json,
    Profile,
    connect,
    print_json,
    print_text,
)

round_app = typer.Typer(
    help="Rounds as signed files, through an airlock.", no_args_is_help=True, add_completion=False
)


@round_app.command("export")
def export_command(
    study: Annotated[str, typer.Argument(help="Name of the study.")],
    site: Annotated[str, typer.Option(help="The site that the file is for.")],
    out: Annotated[Path, typer.Option(help="File to write, such as SITE-STUDY.drop.")],
    profile: Profile = None,
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Write the file that a site without a network is waiting for: the offer, or its open task."""
    from fedmap.files.digests import file_sha256

    with connect(profile, config) as client:
        size = client.export_drop(study, site, out)
        offered = any(status.phase == "approvals" for status in client.status(study).studies)
    what, digest = "offer" if offered else "task", file_sha256(out)
    if as_json:
        about = {"what": what, "study": study, "site": site}
        print_json({**about, "file": str(out), "bytes": size, "sha256": digest})
        return
    reply = f"{site}-{'approval' if offered else 'answer'}.drop"
    command = f"approve --file {out.name} --approver NAME" if offered else f"round run {out.name}"
    print_text(
        f"Wrote {out}: the {what} of {study} for {site}, {size:,} bytes",
        f"  sha256  {digest}",
        f"At the site: fedmap-site {command} --out {reply}",
        f"Then here: fedmap-aggregator round import {reply}",
    )


@round_app.command("import")
def import_command(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="A file that a site made.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Where the reply to an enrolment goes: the site's certificate.")
    ] = None,
    profile: Profile = None,
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Take in a file from such a site: an enrolment, an approval or an answer. Repeating it is harmless."""
    from fedmap.files.durable import write_durably

    with connect(profile, config) as client:
        taken = client.import_drop(file)
    reply = None
    if taken.reply:
        reply = out or file.with_name(f"{taken.site}-certificate.drop")
        write_durably(reply, taken.reply)
    if as_json:
        about = {"what": taken.what, "study": taken.study, "site": taken.site, "task": taken.task_id}
        print_json({**about, "reply": str(reply) if reply else None})
        return
    subject = " ".join(part for part in (taken.study, taken.task_id) if part)
    print_text(f"Accepted: {taken.what} of {taken.site}" + (f" for {subject}" if subject else ""))
    if reply:
        print_text(f"Take {reply} back to the site: it holds the certificate.")
