"""`fedmap-aggregator bundle release | list | show | withdraw | withdrawals | link | download | key`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmap.contract.v1 import values
from fedmap.errors import NotFoundError
from fedmap.process.command_line import PlainTable, command, command_group, moment, say
from fedmap_aggregator.cli.options import Anywhere, Expires, Study, Tier
from fedmap_aggregator.operator.message_json import message_json

if TYPE_CHECKING:
    from fedmap_aggregator.operator.client import OperatorClient

bundle_app = command_group("Release a study's model as one signed file, hand it out, take it back.")
_BUNDLE = re.compile(r"(?P<name>.+-t[23])-(?P<version>[1-9][0-9]{0,8})")
_DATE = "%Y-%m-%d"


def day_after(text: str | None) -> int:
    """Unix ms at the end of a day in UTC; 0 where none is given."""
    if text is None:
        return 0
    try:
        day = datetime.strptime(text, _DATE).replace(tzinfo=UTC)
    except ValueError:
        raise typer.BadParameter("give a day such as 2027-12-31") from None
    return int((day + timedelta(days=1)).timestamp() * 1000)


def _bundle_name(text: str) -> str:
    """NAME-VERSION, or the name of its file."""
    if _BUNDLE.fullmatch(text.removesuffix(".fedmap")) is None:
        raise typer.BadParameter("give name and version, such as uci-heart-t3-1; `bundle list` shows them")
    return text.removesuffix(".fedmap")


Bundle = Annotated[
    str, typer.Argument(callback=_bundle_name, help="Name and version, such as uci-heart-t3-1.")
]


@command(bundle_app, "release")
def release_command(
    given: Anywhere,
    study: Study,
    round_number: Annotated[
        int | None,
        typer.Option("--round", min=1, help="Whose model. Default: the last one, with all its figures."),
    ] = None,
    tier: Tier = 2,
    expires: Expires = None,
) -> None:
    """Make a signed bundle of a study's model. Repeating it gives the same one."""
    ends = day_after(expires)
    with given.connect() as client, say.status(f"releasing {study}"):
        done = client.release(study, round_number or 0, tier, ends)
    bundle = done.bundle or values.ReleasedBundle()
    unjudged = "No figures: the model of this round was not evaluated, and its card says so."
    given.tell(
        message_json(done),
        f"{'Released' if done.made else 'Was released before:'} {bundle.file_name}",
        *_facts(bundle),
        f"  release key  {done.key_fingerprint}",
        None if bundle.evaluated else unjudged,
        "Print the fingerprint of the release key for clinics without a network: they verify with it.",
        f"Enrolled sites: fedmap-site bundle fetch {bundle.name}",
        f"A clinic with a browser: fedmap-aggregator bundle link {bundle.name}-{bundle.version}",
    )


@command(bundle_app, "list")
def list_command(given: Anywhere) -> None:
    """All released bundles, and the fingerprint of the release key."""
    from fedmap_aggregator.operator.status import plain

    with given.connect() as client:
        found = client.released()
    rows = [
        (
            f"{bundle.name}-{bundle.version}",
            f"T{bundle.tier}",
            str(bundle.round),
            moment(bundle.released_unix_ms),
            moment(bundle.expires_unix_ms),
            f"{bundle.size:,}",
            plain(_state(bundle)),
        )
        for bundle in found.bundles
    ]
    columns = ("bundle", "tier", "round", "released", "expires", "size", "state")
    none = "No bundles yet. `fedmap-aggregator bundle release STUDY` makes one."
    given.tell(
        {
            "key_fingerprint": found.key_fingerprint,
            "bundles": [message_json(bundle) for bundle in found.bundles],
        },
        f"Release key {found.key_fingerprint}",
        PlainTable(columns, rows) if rows else none,
    )


@command(bundle_app, "show")
def show_command(
    given: Anywhere,
    bundle: Annotated[str, typer.Argument(help="NAME-VERSION; or NAME, for its newest version.")],
) -> None:
    """One bundle with its model card."""
    wanted = bundle.removesuffix(".fedmap")
    with given.connect() as client:
        name, version = _split(wanted) if _BUNDLE.fullmatch(wanted) else _newest(client, wanted)
        found = client.released(name, version)
    (released,) = found.bundles
    form = {**message_json(released), "card": found.card}
    given.tell(form, released.file_name, *_facts(released), "", found.card)


@command(bundle_app, "withdraw")
def withdraw_command(
    given: Anywhere,
    bundle: Bundle,
    reason: Annotated[str, typer.Option(help="What is wrong with it, in plain words: clinics read it.")],
) -> None:
    """Take a bundle back for good. Sites that see the list of withdrawals refuse it."""
    with given.connect() as client:
        done = client.withdraw(*_split(bundle), reason)
    said = done.bundle.withdrawn if done.bundle is not None else reason
    given.tell(
        message_json(done),
        f"{bundle} is withdrawn: {said}",
        f"The list of withdrawals has serial {done.serial}. Enrolled sites get it with their next fetch.",
        "Send it to clinics without a network: fedmap-aggregator bundle withdrawals --out withdrawn.json",
    )


@command(bundle_app, "withdrawals")
def withdrawals_command(
    given: Anywhere,
    out: Annotated[Path, typer.Option(help="File to write, such as withdrawn.json.")],
) -> None:
    """Write the signed list of withdrawn bundles, for clinics without a network."""
    from fedmap.files.durable import write_durably

    with given.connect() as client:
        found = client.released()
    if not found.signed_withdrawals:
        raise NotFoundError("nothing was released yet, so there is no list", hint="release a bundle first")
    write_durably(out, found.signed_withdrawals, mode=0o644)
    count = sum(bool(bundle.withdrawn_unix_ms) for bundle in found.bundles)
    given.tell(
        {"file": str(out), "withdrawn": count},
        f"Wrote {out}: {count} withdrawn bundle(s), signed",
        f"At the clinic: fedmap-site bundle verify FILE --withdrawals {out.name}",
    )


@command(bundle_app, "link")
def link_command(
    given: Anywhere,
    bundle: Bundle,
    hours: Annotated[
        int | None, typer.Option(min=1, help="How long it may be used. Default: downloads.link_hours.")
    ] = None,
) -> None:
    """Make a link for one download with a browser. It is shown once."""
    with given.connect() as client:
        made = client.download_link(*_split(bundle), hours or 0)
        fingerprint = client.released().key_fingerprint
    given.tell(
        {**message_json(made), "key_fingerprint": fingerprint},
        f"One download of {bundle}, until {moment(made.expires_unix_ms)}:",
        f"  {made.url}",
        "Send the link by mail, and the fingerprint of the release key by another way:",
        f"  {fingerprint}",
    )


@command(bundle_app, "download")
def download_command(
    given: Anywhere,
    bundle: Bundle,
    out: Annotated[
        Path | None, typer.Option(help="File or folder to write to. Default: here, under its own name.")
    ] = None,
) -> None:
    """Write the bundle's file, to hand it over by other means."""
    target = out or Path()
    path = target / f"{bundle}.fedmap" if target.is_dir() else target
    with given.connect() as client, say.status(f"downloading {bundle}"):
        size, digest = client.download(*_split(bundle), path)
    given.tell(
        {"bundle": bundle, "file": str(path), "bytes": size, "sha256": digest},
        f"Wrote {path}: {size:,} bytes",
        f"  sha256  {digest}",
    )


@command(bundle_app, "key")
def key_command(given: Anywhere) -> None:
    """The fingerprint of the release key, to be printed for clinics."""
    with given.connect() as client:
        fingerprint = client.released().key_fingerprint
    given.tell(
        {"key_fingerprint": fingerprint},
        f"Release key {fingerprint}",
        "A clinic types it in once: fedmap-site bundle install FILE --fingerprint FINGERPRINT",
    )


def _split(bundle: str) -> tuple[str, int]:
    found = _BUNDLE.fullmatch(bundle)
    assert found is not None  # `_bundle_name` has let it pass
    return found["name"], int(found["version"])


def _newest(client: OperatorClient, name: str) -> tuple[str, int]:
    return name, max(bundle.version for bundle in client.released(name).bundles)


def _state(bundle: values.ReleasedBundle) -> str:
    if bundle.withdrawn_unix_ms:
        return f"withdrawn: {bundle.withdrawn}"
    if bundle.expires_unix_ms <= datetime.now(UTC).timestamp() * 1000:
        return "expired"
    return "valid" if bundle.evaluated else "valid, not evaluated"


def _facts(bundle: values.ReleasedBundle) -> tuple[str, ...]:
    return (
        f"  study        {bundle.study}, round {bundle.round}",
        f"  tier         {bundle.tier}: {'fine-tune and predict' if bundle.tier == 2 else 'predict only'}",
        f"  expires      {moment(bundle.expires_unix_ms)}",
        f"  size         {bundle.size:,} bytes",
        f"  sha256       {bundle.sha256}",
        f"  state        {_state(bundle)}",
    )
