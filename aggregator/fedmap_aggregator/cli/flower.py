"""`fedmap-aggregator bundle import-flower`: a signed bundle from a study that Flower has run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmap.process.command_line import moment
from fedmap_aggregator.cli.bundles import day_after
from fedmap_aggregator.cli.options import Expires, Here, Tier


def import_flower_command(
    given: Here,
    folder: Annotated[Path, typer.Argument(help="The folder that the Flower run wrote (its --out).")],
    tier: Tier = 2,
    expires: Expires = None,
    to: Annotated[
        Path | None, typer.Option(help="Write the bundle here as well: a file or a folder.")
    ] = None,
) -> None:
    """Make a signed bundle of a study that was run on Flower. On the aggregator's own machine.

    Everything in the folder passes the gate's checks once more before it is signed. Listing, downloading and
    withdrawing the bundle is as with any other.
    """
    from fedmap.files.durable import read_file, write_durably
    from fedmap_aggregator.release.flower_import import import_run
    from fedmap_aggregator.store.layout import open_store

    settings, ends = given.settings(), day_after(expires)
    with open_store(settings) as store:
        done = import_run(folder, settings, store, tier, ends or None)
    row, written = done.bundle, None
    if to is not None:
        written = to / row.file_name if to.is_dir() else to
        write_durably(written, read_file(done.file), mode=0o644)
    given.tell(
        {
            "bundle": row.file_name,
            "study": row.study,
            "round": row.round,
            "tier": row.tier,
            "sha256": row.file_digest,
            "size": row.size,
            "expires_unix_ms": row.expires_at,
            "key_fingerprint": row.key_fingerprint,
            "made": done.made,
            "file": None if written is None else str(written),
        },
        f"{'Released' if done.made else 'Was released before:'} {row.file_name}",
        f"  study        {row.study}, round {row.round}, run on {done.runtime}",
        f"  expires      {moment(row.expires_at)}",
        f"  sha256       {row.file_digest}",
        f"  release key  {row.key_fingerprint}",
        f"Wrote {written}"
        if written is not None
        else f"Hand it over: fedmap-aggregator bundle download {row.name}-{row.version}",
    )
