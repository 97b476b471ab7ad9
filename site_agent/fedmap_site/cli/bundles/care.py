"""`fedmap-site bundle card | remove | trust | withdrawals`: read, delete, and whom to believe. Offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmap.process.command_line import JsonValue, WholeTable, moment
from fedmap_site.cli.options import AtShelf, Trusting, TrustNewKey, now_ms, split_named

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
