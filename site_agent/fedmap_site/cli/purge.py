"""`fedmap-site purge | deletion verify`: let go of a study, with a certificate that it is gone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmap_site.cli.output import DEFAULT_CONFIG, Approver, Config, Json, load_config, print_json, print_text

if TYPE_CHECKING:
    from fedmap.trust.deletion import Trust
    from fedmap_site.wiring import Site

deletion_app = typer.Typer(help="Certificates of deletion.", no_args_is_help=True, add_completion=False)


@deletion_app.callback()
def deletion_callback() -> None:
    """Certificates of deletion."""


def purge_command(
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
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Delete this site's models, priors and outbox items of a study, for good, with a certificate."""
    from fedmap.files.durable import read_file, write_durably
    from fedmap_site.exit.outbox import check_approver
    from fedmap_site.wiring import Site

    by = check_approver(approver)
    site = Site(load_config(config))
    purge = site.purge()
    found = purge.plan(study)
    size = sum(one.bytes for one in found)
    lines = [f"  {one.kind:<8} {one.bytes:>12,} bytes  {one.name}" for one in found]
    if dry_run:
        if as_json:
            print_json({"study": study, "files": [one.model_dump() for one in found], "bytes": size})
        else:
            print_text(f"A purge of {study} deletes {len(found)} file(s), {size:,} bytes:", *lines)
        return
    if not yes and not as_json:
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
    if as_json:
        print_json({"study": study, "files": files, "bytes": record.bytes, "certificate": str(out or path)})
        return
    print_text(
        f"{files} file(s) of {study}, {record.bytes:,} bytes, were deleted.",
        f"The signed certificate of deletion: {out or path}",
        "Backups that were made before still hold them: delete those when their time is up.",
    )


@deletion_app.command("verify")
def deletion_verify_command(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A certificate of deletion.")],
    fingerprint: Annotated[
        str, typer.Option(help="Of the release key, from paper. Default: the keys trusted here.")
    ] = "",
    ca: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Of a site's certificate: the federation's ca.pem."),
    ] = None,
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Check who signed a certificate of deletion, and that nothing in it was changed. Asks nobody."""
    from fedmap.files.durable import read_file
    from fedmap.trust.deletion import deletion_lines, read_deletion

    record, signer = read_deletion(read_file(file), _trust(fingerprint, ca, config))
    if as_json:
        print_json({"signed_by": signer, **record.model_dump(mode="json")})
        return
    print_text(*deletion_lines(file.name, record, signer))


def _check_ended(site: Site, study: str) -> None:
    """StateError while the study goes on."""
    from fedmap.errors import StateError, UnreachableError
    from fedmap_site.upkeep.retention import ENDED

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


def _trust(fingerprint: str, ca: Path | None, config: Path) -> Trust:
    """What was given; otherwise what this site knows, where it is enrolled."""
    from fedmap.files.durable import read_file
    from fedmap.trust.deletion import Trust
    from fedmap_site.identity.files import is_enrolled, read_identity

    fingerprints, authority = frozenset({fingerprint} - {""}), read_file(ca) if ca is not None else b""
    if config.is_file():
        from fedmap_site.cli.bundles.shelf import open_store

        settings = load_config(config)
        if not fingerprints:
            pinned = open_store(None, config).trust.trusted()
            fingerprints = frozenset(key.fingerprint for key in pinned)
        if not authority and is_enrolled(settings.site.state):
            authority = read_identity(settings.site.state).authority
    return Trust(fingerprints, authority)
