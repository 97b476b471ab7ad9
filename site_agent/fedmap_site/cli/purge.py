"""`fedmap-site purge | deletion verify`: let go of a study, with a certificate that it is gone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmap.process.command_line import command, command_group, print_text
from fedmap.trust.deletion_check import Authority, Certificate, Fingerprint, tell_deletion
from fedmap_site.cli.options import Approver, Here

if TYPE_CHECKING:
    from fedmap.trust.deletion import Trust
    from fedmap_site.wiring import Site

deletion_app = command_group("Certificates of deletion.")


def purge_command(
    given: Here,
    study: Annotated[str, typer.Argument(help="A study that has ended, or that this site has left.")],
    approver: Approver,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be deleted.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    ended: Annotated[
        bool, typer.Option("--ended", help="You know that the study has ended: do not ask the aggregator.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Also write the certificate to this file.")
    ] = None,
) -> None:
    """Delete this site's models, priors and outbox items of a study, for good, with a certificate."""
    from fedmap.files.durable import read_file, write_durably
    from fedmap_site.exit.outbox import check_approver

    by = check_approver(approver)
    site = given.site()
    purge = site.purge()
    found = purge.plan(study)
    size = sum(one.bytes for one in found)
    lines = [f"  {one.kind:<8} {one.bytes:>12,} bytes  {one.name}" for one in found]
    if dry_run:
        given.tell(
            {"study": study, "files": [one.model_dump() for one in found], "bytes": size},
            f"A purge of {study} deletes {len(found)} file(s), {size:,} bytes:",
            *lines,
        )
        return
    if not yes and not given.as_json:
        print_text(*lines)
        typer.confirm(f"Delete these {len(found)} file(s) of {study} for good?", abort=True)
    if study in site.state.studies():
        if not ended:
            _check_ended(site, study)
        site.state.leave(study)
    for item in site.outbox.items("waiting_review", "released"):
        if item.study == study:
            site.outbox.withdraw(item.id, "the study is purged", by)
    path, record = purge.purge(study, by)
    files = len(record.deleted)
    if out is not None:
        write_durably(out, read_file(path), mode=0o644)
    given.tell(
        {"study": study, "files": files, "bytes": record.bytes, "certificate": str(out or path)},
        f"{files} file(s) of {study}, {record.bytes:,} bytes, were deleted.",
        f"The signed certificate of deletion: {out or path}",
        "Backups that were made before still hold them: delete those when their time is up.",
    )


@command(deletion_app, "verify")
def deletion_verify_command(
    given: Here, file: Certificate, fingerprint: Fingerprint = "", ca: Authority = None
) -> None:
    """Check who signed a certificate of deletion, and that nothing in it was changed. Asks nobody."""
    tell_deletion(given, file, fingerprint, ca, lambda: _trust(given))


def _check_ended(site: Site, study: str) -> None:
    """StateError while the study goes on."""
    from fedmap.errors import StateError, UnreachableError
    from fedmap_site.upkeep.purge import ENDED

    try:
        with site.connect() as connection:
            phases = {one.study: one.phase for one in connection.studies()}
    except UnreachableError as error:
        raise StateError(
            f"whether the study {study} has ended cannot be asked: the aggregator cannot be reached",
            hint=f"Run `fedmap-site leave {study}` first, or give --ended if you know that it has ended.",
        ) from error
    if phases.get(study) not in ENDED:
        raise StateError(
            f"this site still takes part in the study {study} (phase {phases.get(study, 'unknown')})",
            hint=f"Run `fedmap-site leave {study}` first; the others go on.",
        )


def _trust(given: Here) -> Trust:
    """What this site knows, where it is enrolled."""
    from fedmap.trust.deletion import Trust
    from fedmap_site.cli.options import AtShelf
    from fedmap_site.identity.files import is_enrolled, read_identity

    if not given.config.is_file():
        return Trust()
    state = given.settings().site.state
    pinned = AtShelf(config=given.config).shelf().trust.trusted()
    authority = read_identity(state).authority if is_enrolled(state) else b""
    return Trust(frozenset(key.fingerprint for key in pinned), authority)
