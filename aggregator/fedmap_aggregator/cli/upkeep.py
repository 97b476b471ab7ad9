"""`fedmap-aggregator backup | restore | purge | deletion verify`: keeping the state, and letting go of it.

`backup` and `restore` work on this machine, on the state folder; `purge` goes over the operator's connection;
`deletion verify` needs neither.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmap.process.command_line import command, command_group, moment, print_text
from fedmap.trust.deletion_check import Authority, Certificate, Fingerprint, tell_deletion
from fedmap_aggregator.cli.options import Anywhere, Here, Yes
from fedmap_aggregator.operator.message_json import message_json

if TYPE_CHECKING:
    from fedmap.contract.v1 import values
    from fedmap.process.command_line import JsonValue
    from fedmap.trust.deletion import Trust
    from fedmap_aggregator.upkeep.archive import BackupManifest

deletion_app = command_group("Certificates of deletion.")


def backup_command(
    given: Here,
    out: Annotated[Path, typer.Option(help="File to write, or a folder for a file named by the time.")],
    without_keys: Annotated[
        bool, typer.Option("--without-keys", help="Leave out private keys, where they are kept elsewhere.")
    ] = False,
) -> None:
    """Write everything into one file, while the aggregator runs or not, and read it back."""
    from fedmap_aggregator.upkeep.backup import make_backup

    made = make_backup(given.settings(), given.config, out, datetime.now(UTC), with_keys=not without_keys)
    manifest = made.manifest
    given.tell(
        {"file": str(made.path), "bytes": made.size, "sha256": made.sha256, **_facts(manifest)},
        f"Wrote {made.path}, {made.size:,} bytes, and read it back whole.",
        *_lines(manifest),
        f"  sha256      {made.sha256}",
        "It holds private keys: encrypt it, and keep it apart from this machine."
        if manifest.with_keys
        else f"Without keys. These have to be kept elsewhere: {', '.join(manifest.left_out) or 'none'}",
        f"Outside the state folder, not in it: {', '.join(manifest.outside)}" if manifest.outside else None,
    )


def restore_command(
    given: Here,
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A file that `backup` wrote.")],
    check: Annotated[bool, typer.Option("--check", help="Only verify the file. Nothing is written.")] = False,
) -> None:
    """Put a backup back, into an empty state folder and database. Verifies all of it first."""
    from fedmap_aggregator.upkeep.restore import check_backup, restore_backup

    if check:
        manifest = check_backup(file)
        given.tell({"file": str(file), **_facts(manifest)}, f"{file} is whole.", *_lines(manifest))
        return
    restored = restore_backup(file, given.config, datetime.now(UTC))
    manifest, state, written = restored.manifest, restored.config.server.state, restored.config_written
    missing = [f"  {one}" for one in (*(state / name for name in manifest.left_out), *manifest.outside)]
    given.tell(
        {"state": str(state), "config_written": written, **_facts(manifest)},
        f"Wrote {given.config}, as it was in the backup." if written else None,
        f"Restored {file} into {state}",
        *_lines(manifest),
        *(["Put these in place, they are not in the backup:", *missing] if missing else []),
        "Next: fedmap-aggregator doctor, then fedmap-aggregator serve",
    )


def purge_command(
    given: Anywhere,
    study: Annotated[str, typer.Argument(help="Name of a study that has ended.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be deleted.")] = False,
    yes: Yes = False,
    with_bundles: Annotated[
        bool, typer.Option("--with-bundles", help="Also the files of its bundles; all must be withdrawn.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Certificate to write. Default: STUDY.deletion.json.")
    ] = None,
) -> None:
    """Delete what the sites sent and what was computed in an ended study, for good, with a certificate."""
    from fedmap.files.durable import write_durably
    from fedmap.trust.deletion import SUFFIX

    target = out or Path(f"{study}{SUFFIX}")
    with given.connect() as client:
        plan = client.purge(study, with_bundles=with_bundles, dry_run=True)
        if dry_run:
            given.tell(message_json(plan), *_plan_lines(plan))
            return
        if not plan.done and not yes and not given.as_json:
            print_text(*_plan_lines(plan))
            typer.confirm(f"Delete the content of {study} for good?", abort=True)
        done = client.purge(study, with_bundles=with_bundles, dry_run=False)
        certificate = client.deletion(study)
    write_durably(target, certificate, mode=0o644)
    given.tell(
        {**message_json(done), "certificate": str(target)},
        f"The content of {study} was deleted, {moment(done.finished_unix_ms)}.",
        f"Wrote {target}: the signed certificate of deletion.",
        "Backups that were made before still hold it: delete them when their time is up.",
    )


@command(deletion_app, "verify")
def deletion_verify_command(
    given: Here, file: Certificate, fingerprint: Fingerprint = "", ca: Authority = None
) -> None:
    """Check who signed a certificate of deletion, and that nothing in it was changed. Asks nobody."""
    tell_deletion(given, file, fingerprint, ca, lambda: _trust(given))


def _trust(given: Here) -> Trust:
    """What this aggregator's own files say, where there are any."""
    from fedmap.files.durable import read_file
    from fedmap.trust.deletion import Trust
    from fedmap_aggregator.identity.initialise import pki_paths
    from fedmap_aggregator.identity.release_key import read_release_key, release_key_path

    if not given.config.is_file():
        return Trust()
    settings = given.settings()
    key, own = release_key_path(settings), settings.pki.client_ca or pki_paths(settings).ca
    fingerprints = {read_release_key(key).fingerprint} if key.is_file() else ()
    return Trust(fingerprints, read_file(own) if own.is_file() else b"")


def _plan_lines(plan: values.PurgeStudyResponse) -> list[str]:
    lines = [
        f"A purge of {plan.study} deletes",
        f"  {plan.answers:,} answers of sites, {plan.results:,} results, {plan.refusals:,} refusals",
        f"  {plan.files:,} files with parameters and priors, {plan.bytes:,} bytes",
        *(f"  the file of the withdrawn bundle {name}" for name in plan.bundles_deleted),
        "and keeps the audit log, the study's name, terms and members",
        *(f"  the bundle {name}" for name in plan.bundles_kept),
    ]
    return ["It was deleted before:", *lines] if plan.done else lines


def _facts(manifest: BackupManifest) -> dict[str, JsonValue]:
    told = manifest.model_dump(mode="json", exclude={"format", "tables", "files"})
    return {**told, "files": len(manifest.files)}


def _lines(manifest: BackupManifest) -> list[str]:
    return [
        f"  made        {moment(manifest.made_unix_ms)}, by version {manifest.software_version}",
        f"  aggregator  {manifest.address}",
        f"  database    {manifest.database}, schema {manifest.schema_revision or 'none yet'}, "
        f"{sum(manifest.tables.values()):,} rows",
        f"  files       {len(manifest.files):,}",
        f"  audit head  {manifest.audit_head or 'none yet'} ({manifest.audit_entries:,} entries)",
    ]
