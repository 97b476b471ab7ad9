"""`fedmap-aggregator round export | import`: rounds that travel as files, for sites without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmap.process.command_line import command, command_group
from fedmap_aggregator.cli.options import Anywhere, Study

round_app = command_group("Rounds as signed files, through an airlock.")


@command(round_app, "export")
def export_command(
    given: Anywhere,
    study: Study,
    site: Annotated[str, typer.Option(help="The site that the file is for.")],
    out: Annotated[Path, typer.Option(help="File to write, such as SITE-STUDY.drop.")],
) -> None:
    """Write the file that a site without a network is waiting for: the offer, or its open task."""
    from fedmap.files.digests import file_sha256

    with given.connect() as client:
        size = client.export_drop(study, site, out)
        offered = any(status.phase == "approvals" for status in client.status(study).studies)
    what, digest = "offer" if offered else "task", file_sha256(out)
    reply = f"{site}-{'approval' if offered else 'answer'}.drop"
    run = f"approve --file {out.name} --approver NAME" if offered else f"round run {out.name}"
    given.tell(
        {"what": what, "study": study, "site": site, "file": str(out), "bytes": size, "sha256": digest},
        f"Wrote {out}: the {what} of {study} for {site}, {size:,} bytes",
        f"  sha256  {digest}",
        f"At the site: fedmap-site {run} --out {reply}",
        f"Then here: fedmap-aggregator round import {reply}",
    )


@command(round_app, "import")
def import_command(
    given: Anywhere,
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="A file that a site made.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Where the reply to an enrolment goes: the site's certificate.")
    ] = None,
) -> None:
    """Take in a file from such a site: an enrolment, an approval or an answer. Repeating it is harmless."""
    from fedmap.files.durable import write_durably

    with given.connect() as client:
        taken = client.import_drop(file)
    reply = None
    if taken.reply:
        reply = out or file.with_name(f"{taken.site}-certificate.drop")
        write_durably(reply, taken.reply)
    subject = " ".join(part for part in (taken.study, taken.task_id) if part)
    given.tell(
        {
            "what": taken.what,
            "study": taken.study,
            "site": taken.site,
            "task": taken.task_id,
            "reply": str(reply) if reply else None,
        },
        f"Accepted: {taken.what} of {taken.site}" + (f" for {subject}" if subject else ""),
        f"Take {reply} back to the site: it holds the certificate." if reply else None,
    )
