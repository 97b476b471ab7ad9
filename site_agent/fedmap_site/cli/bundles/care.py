"""`fedmap-site bundle card | remove | trust | withdrawals`: read, delete, and whom to believe. Offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmap_site.cli.bundles.shelf import (
    Fingerprint,
    Store,
    TrustNewKey,
    day,
    now_ms,
    open_bundle,
    open_store,
)
from fedmap_site.cli.output import DEFAULT_CONFIG, Config, Json, print_json, print_table, print_text

Named = Annotated[str, typer.Argument(help="NAME or NAME-VERSION, as `fedmap-site bundle list` shows it.")]


def card_command(
    reference: Annotated[str, typer.Argument(help="A file, or NAME or NAME-VERSION of an installed bundle.")],
    out: Annotated[
        Path | None, typer.Option(file_okay=False, help="Write card.md and calibration.svg to this folder.")
    ] = None,
    fingerprint: Fingerprint = "",
    store: Store = None,
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Read the model card: what the model is for, how good it is, and its limits."""
    bundle = open_bundle(reference, store, fingerprint, config)
    card, written = bundle.card(), []
    if out is not None:
        from fedmap.files.durable import make_folder, write_durably

        make_folder(out, 0o755)
        picture = bundle.calibration_picture()
        for name, data in (("card.md", card.encode()), ("calibration.svg", picture)):
            if data is not None:
                write_durably(out / name, data, 0o644)
                written.append(str(out / name))
    if as_json:
        manifest = bundle.manifest
        print_json({"name": manifest.name, "version": manifest.version, "card": card, "files": written})
    elif written:
        print_text(*(f"Wrote {path}" for path in written))
    else:
        print_text(card)


def remove_command(
    reference: Named, store: Store = None, config: Config = DEFAULT_CONFIG, as_json: Json = False
) -> None:
    """Delete one installed version. That it was here stays known: an older one is still refused."""
    shelf = open_store(store, config)
    name, version = _split(reference)
    there = [one for one in shelf.installed() if one.name == name]
    if version is None and len(there) > 1:
        listed = ", ".join(one.reference for one in there)
        raise typer.BadParameter(f"several versions are installed, name one of them: {listed}")
    gone = shelf.remove(name, version)
    if as_json:
        print_json({"removed": gone.reference})
        return
    print_text(f"Removed {gone.reference}.")


def trust_command(
    fingerprint: Annotated[str, typer.Argument(help="As on paper; without it: list what is trusted.")] = "",
    trust_new_key: TrustNewKey = False,
    forget: Annotated[bool, typer.Option("--forget", help="Trust this key no longer.")] = False,
    store: Store = None,
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """The release keys whose bundles are believed here: list them, add one from paper, forget one."""
    if (trust_new_key or forget) and not fingerprint:
        raise typer.BadParameter("give the fingerprint of the key")
    if trust_new_key and forget:
        raise typer.BadParameter("give --trust-new-key or --forget, not both")
    shelf = open_store(store, config)
    if forget:
        shelf.forget_key(fingerprint)
    elif fingerprint:
        shelf.pin_key(fingerprint, "on paper", now_ms(), another=trust_new_key)
    from fedmap.trust.signing import shown_fingerprint

    keys = [(shown_fingerprint(k.fingerprint), k.source, day(k.at_unix_ms)) for k in shelf.trust.trusted()]
    if as_json:
        rows = [{"fingerprint": key, "source": source, "since": since} for key, source, since in keys]
        print_json({"store": str(shelf.folder), "keys": rows})
    elif keys:
        print_table(("trusted key", "source", "since"), keys)
    else:
        print_text("No release key is trusted here yet.")


def withdrawals_command(
    file: Annotated[Path, typer.Argument(dir_okay=False, help="The signed list, as the operator sent it.")],
    store: Store = None,
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Take in a list of withdrawn bundles that came as a file. From then on they are refused here."""
    from fedmap.files.durable import read_file

    shelf = open_store(store, config)
    taken = shelf.accept_withdrawals(read_file(file))
    stopped = [one.reference for one in shelf.installed() if taken.find(one.name, one.version) is not None]
    if as_json:
        print_json({"serial": taken.serial, "withdrawn": len(taken.entries), "installed_here": stopped})
        return
    print_text(
        f"Taken: list {taken.serial}, with {len(taken.entries)} withdrawn.",
        f"Of those installed here: {', '.join(stopped)}. They are refused from now on."
        if stopped
        else "None of them is installed here.",
    )


def _split(reference: str) -> tuple[str, int | None]:
    from fedmap_site.bundles.records import split_reference

    found = split_reference(reference)
    if found is None:
        raise typer.BadParameter(f"{reference!r} is not NAME or NAME-VERSION, such as uci-heart-t2-1")
    return found
