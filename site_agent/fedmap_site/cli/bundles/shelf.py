"""`fedmap-site bundle verify | install | list | card | remove | trust | withdrawals`: fully offline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmap.errors import FedmapError
from fedmap.process.command_line import JsonValue, WholeTable, command, command_group, moment, print_json
from fedmap_site.cli.options import (
    AtShelf,
    Trusting,
    TrustNewKey,
    install_from,
    installed_lines,
    now_ms,
    split_named,
)

if TYPE_CHECKING:
    from fedmap_site.bundles.records import Installed
    from fedmap_site.bundles.store import BundleStore

bundle_app = command_group("Released models: get, verify, install, read.")


@command(bundle_app, "verify")
def verify_command(
    given: Trusting,
    file: Annotated[Path, typer.Argument(dir_okay=False, help="The .fedmap file.")],
    withdrawals: Annotated[
        Path | None, typer.Option(dir_okay=False, help="A signed list of withdrawn bundles, as a file.")
    ] = None,
) -> None:
    """May this file be used? Nine numbered steps, fully offline. Changes nothing."""
    from fedmap.bundles.withdrawals import read_withdrawals
    from fedmap.files.durable import read_file

    shelf, fingerprint = given.shelf(), given.fingerprint
    try:
        listed = None
        if withdrawals is not None:
            keys = frozenset({fingerprint}) if fingerprint else shelf.trust.fingerprints()
            listed = read_withdrawals(read_file(withdrawals), keys)
        bundle = shelf.verify(file, now_ms(), fingerprint, listed)
    except FedmapError as error:
        if not given.as_json:
            raise
        facts = {"code": error.code, "message": error.message, "hint": error.hint}
        print_json({"file": str(file), "verified": False, "error": facts})
        raise typer.Exit(1) from None
    manifest = bundle.manifest
    trusted = "" if fingerprint else ", with the key that is trusted here"
    given.tell(
        {
            "file": str(file),
            "verified": True,
            "name": manifest.name,
            "version": manifest.version,
            "tier": manifest.tier,
            "sha256": bundle.sha256,
            "size": bundle.size,
            "key": bundle.key_fingerprint,
            "expires": moment(manifest.expires_unix_ms),
            "steps": [{"number": s.number, "name": s.name, "finding": s.finding} for s in bundle.steps],
        },
        f"{file}: {manifest.title} ({manifest.name}, version {manifest.version}, tier {manifest.tier})",
        WholeTable(("step", "", ""), [(f"({s.number})", s.name, s.finding) for s in bundle.steps]),
        f"SHA-256 {bundle.sha256}",
        f"All steps passed{trusted}: this file may be used.",
    )


@command(bundle_app, "install")
def install_command(
    given: Trusting,
    reference: Annotated[str, typer.Argument(help="A .fedmap file, or the NAME of one that was fetched.")],
    trust_new_key: TrustNewKey = False,
) -> None:
    """Verify a bundle and put it in force. On any failure, what was installed before stays as it was."""
    if trust_new_key and not given.fingerprint:
        raise typer.BadParameter("--trust-new-key needs --fingerprint, the new key's as on paper")
    shelf = given.shelf()
    installed = install_from(shelf, _file_of(shelf, reference), given.fingerprint, trust_new_key)
    given.tell(
        {"installed": _facts(shelf, installed), "store": str(shelf.folder)},
        *installed_lines(shelf, installed),
    )


@command(bundle_app, "list")
def list_command(given: AtShelf) -> None:
    """What is installed, and whether it may be used today."""
    shelf = given.shelf()
    installed = shelf.installed()
    rows = []
    for one in installed:
        standing, reason = shelf.standing(one, now_ms())
        state = f"{standing}: {reason}" if reason else standing
        rows.append(
            (one.name, str(one.version), str(one.tier), one.title, moment(one.expires_unix_ms), state)
        )
    table = WholeTable(("name", "version", "tier", "title", "expires", "state"), rows)
    form: JsonValue = {"store": str(shelf.folder), "bundles": [_facts(shelf, one) for one in installed]}
    given.tell(form, table if rows else f"No bundle is installed in {shelf.folder}.")


def _file_of(shelf: BundleStore, reference: str) -> Path:
    """The file itself, or the newest one of that name among the fetched."""
    from fedmap.bundles.manifest import SUFFIX, split_reference
    from fedmap.errors import NotFoundError

    named = split_reference(reference)
    if named is None or Path(reference).is_file():
        return Path(reference)
    found = []
    for path in shelf.downloads.glob(f"*{SUFFIX}"):
        split = split_reference(path.name[: -len(SUFFIX)])
        if split is not None and split[0] == named[0] and named[1] in (None, split[1]):
            found.append((split[1] or 0, path))
    if not found:
        raise NotFoundError(
            f"{reference} was not fetched, and there is no file of that name",
            hint=f"Give the path of the file, or run `fedmap-site bundle fetch {reference}` first.",
        )
    return max(found)[1]


def _facts(shelf: BundleStore, one: Installed) -> dict[str, JsonValue]:
    standing, reason = shelf.standing(one, now_ms())
    return {
        **one.model_dump(include={"name", "version", "tier", "title", "sha256", "size", "key"}),
        "expires": moment(one.expires_unix_ms),
        "state": standing,
        "reason": reason,
        "file": str(shelf.path_of(one)),
    }


Named = Annotated[str, typer.Argument(help="NAME or NAME-VERSION, as `fedmap-site bundle list` shows it.")]


def card_command(
    given: Trusting,
    reference: Annotated[str, typer.Argument(help="A file, or NAME or NAME-VERSION of an installed bundle.")],
    out: Annotated[
        Path | None, typer.Option(file_okay=False, help="Write card.md and calibration.svg to this folder.")
    ] = None,
) -> None:
    """Read the model card: what the model is for, how good it is, and its limits."""
    bundle = given.bundle(reference)
    card, written = bundle.card(), []
    if out is not None:
        from fedmap.files.durable import make_folder, write_durably

        make_folder(out, 0o755)
        picture = bundle.calibration_picture()
        for name, data in (("card.md", card.encode()), ("calibration.svg", picture)):
            if data is not None:
                write_durably(out / name, data, 0o644)
                written.append(str(out / name))
    manifest = bundle.manifest
    given.tell(
        {"name": manifest.name, "version": manifest.version, "card": card, "files": written},
        *([f"Wrote {path}" for path in written] or [card]),
    )


def remove_command(given: AtShelf, reference: Named) -> None:
    """Delete one installed version. That it was here stays known: an older one is still refused."""
    shelf = given.shelf()
    name, version = split_named(reference)
    there = [one for one in shelf.installed() if one.name == name]
    if version is None and len(there) > 1:
        listed = ", ".join(one.reference for one in there)
        raise typer.BadParameter(f"several versions are installed, name one of them: {listed}")
    gone = shelf.remove(name, version)
    given.tell({"removed": gone.reference}, f"Removed {gone.reference}.")


def trust_command(
    given: AtShelf,
    fingerprint: Annotated[str, typer.Argument(help="As on paper; without it: list what is trusted.")] = "",
    trust_new_key: TrustNewKey = False,
    forget: Annotated[bool, typer.Option("--forget", help="Trust this key no longer.")] = False,
) -> None:
    """The release keys whose bundles are believed here: list them, add one from paper, forget one."""
    if (trust_new_key or forget) and not fingerprint:
        raise typer.BadParameter("give the fingerprint of the key")
    if trust_new_key and forget:
        raise typer.BadParameter("give --trust-new-key or --forget, not both")
    shelf = given.shelf()
    if forget:
        shelf.forget_key(fingerprint)
    elif fingerprint:
        shelf.pin_key(fingerprint, "on paper", now_ms(), another=trust_new_key)
    from fedmap.trust.signing import shown_fingerprint

    keys = [(shown_fingerprint(k.fingerprint), k.source, moment(k.at_unix_ms)) for k in shelf.trust.trusted()]
    rows: list[JsonValue] = [
        {"fingerprint": key, "source": source, "since": since} for key, source, since in keys
    ]
    table = WholeTable(("trusted key", "source", "since"), keys)
    none = "No release key is trusted here yet."
    given.tell({"store": str(shelf.folder), "keys": rows}, table if keys else none)


def withdrawals_command(
    given: AtShelf,
    file: Annotated[Path, typer.Argument(dir_okay=False, help="The signed list, as the operator sent it.")],
) -> None:
    """Take in a list of withdrawn bundles that came as a file. From then on they are refused here."""
    from fedmap.files.durable import read_file

    shelf = given.shelf()
    taken = shelf.accept_withdrawals(read_file(file))
    stopped = [one.reference for one in shelf.installed() if taken.find(one.name, one.version) is not None]
    given.tell(
        {"serial": taken.serial, "withdrawn": len(taken.entries), "installed_here": stopped},
        f"Taken: list {taken.serial}, with {len(taken.entries)} withdrawn.",
        f"Of those installed here: {', '.join(stopped)}. They are refused from now on."
        if stopped
        else "None of them is installed here.",
    )
