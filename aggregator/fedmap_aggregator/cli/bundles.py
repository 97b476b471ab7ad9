"""`fedmap-aggregator bundle release | list | show | withdraw | withdrawals | link | download | key`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmap.errors import NotFoundError
from fedmap_aggregator.cli.output import (
    DEFAULT_CONFIG,
    Config,
    Json,
    Profile,
    answer,
    connect,
    moment,
    print_json,
    print_text,
    say,
)

if TYPE_CHECKING:
    from fedmap.contract.v1 import operator_pb2 as pb
    from fedmap_aggregator.operator.client import OperatorClient

bundle_app = typer.Typer(
    help="Release a study's model as one signed file, hand it out, take it back.",
    no_args_is_help=True,
    add_completion=False,
)
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


@bundle_app.command("release")
def release_command(
    study: Annotated[str, typer.Argument(help="Name of the study.")],
    round_number: Annotated[
        int | None,
        typer.Option("--round", min=1, help="Whose model. Default: the last one, with all its figures."),
    ] = None,
    tier: Annotated[
        int, typer.Option(min=2, max=3, help="2: with the prior, to fine-tune; 3: to predict only.")
    ] = 2,
    expires: Annotated[
        str | None, typer.Option(metavar="DATE", help="Last day on which it may be used, as 2027-12-31.")
    ] = None,
    profile: Profile = None,
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Make a signed bundle of a study's model. Repeating it gives the same one."""
    from fedmap_aggregator.operator.message_json import message_json

    ends = day_after(expires)
    with connect(profile, config) as client, say.status(f"releasing {study}"):
        done = client.release(study, round_number or 0, tier, ends)
    if as_json:
        print_json(message_json(done))
        return
    bundle = done.bundle
    print_text(
        f"{'Released' if done.made else 'Was released before:'} {bundle.file_name}",
        *_facts(bundle),
        f"  release key  {done.key_fingerprint}",
    )
    if not bundle.evaluated:
        print_text("No figures: the model of this round was not evaluated, and its card says so.")
    print_text(
        "Print the fingerprint of the release key for clinics without a network: they verify with it.",
        f"Enrolled sites: fedmap-site bundle fetch {bundle.name}",
        f"A clinic with a browser: fedmap-aggregator bundle link {bundle.name}-{bundle.version}",
    )


@bundle_app.command("list")
def list_command(profile: Profile = None, config: Config = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """All released bundles, and the fingerprint of the release key."""
    from fedmap_aggregator.operator.message_json import message_json
    from fedmap_aggregator.operator.status import add_row, plain, plain_table

    with connect(profile, config) as client:
        found = client.released()
    if as_json:
        print_json(
            {
                "key_fingerprint": found.key_fingerprint,
                "bundles": [message_json(bundle) for bundle in found.bundles],
            }
        )
        return
    print_text(f"Release key {found.key_fingerprint}")
    if not found.bundles:
        print_text("No bundles yet. `fedmap-aggregator bundle release STUDY` makes one.")
        return
    table = plain_table("bundle", "tier", "round", "released", "expires", "size", "state")
    for bundle in found.bundles:
        add_row(
            table,
            f"{bundle.name}-{bundle.version}",
            f"T{bundle.tier}",
            str(bundle.round),
            moment(bundle.released_unix_ms),
            moment(bundle.expires_unix_ms),
            f"{bundle.size:,}",
            plain(_state(bundle)),
        )
    answer.print(table)


@bundle_app.command("show")
def show_command(
    bundle: Annotated[str, typer.Argument(help="NAME-VERSION; or NAME, for its newest version.")],
    profile: Profile = None,
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """One bundle with its model card."""
    from fedmap_aggregator.operator.message_json import message_json

    wanted = bundle.removesuffix(".fedmap")
    with connect(profile, config) as client:
        name, version = _split(wanted) if _BUNDLE.fullmatch(wanted) else _newest(client, wanted)
        found = client.released(name, version)
    (released,) = found.bundles
    if as_json:
        print_json({**message_json(released), "card": found.card})
        return
    print_text(released.file_name, *_facts(released), "", found.card)


@bundle_app.command("withdraw")
def withdraw_command(
    bundle: Bundle,
    reason: Annotated[str, typer.Option(help="What is wrong with it, in plain words: clinics read it.")],
    profile: Profile = None,
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Take a bundle back for good. Sites that see the list of withdrawals refuse it."""
    from fedmap_aggregator.operator.message_json import message_json

    with connect(profile, config) as client:
        done = client.withdraw(*_split(bundle), reason)
    if as_json:
        print_json(message_json(done))
        return
    print_text(
        f"{bundle} is withdrawn: {done.bundle.withdrawn}",
        f"The list of withdrawals has serial {done.serial}. Enrolled sites get it with their next fetch.",
        "Send it to clinics without a network: fedmap-aggregator bundle withdrawals --out withdrawn.json",
    )


@bundle_app.command("withdrawals")
def withdrawals_command(
    out: Annotated[Path, typer.Option(help="File to write, such as withdrawn.json.")],
    profile: Profile = None,
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Write the signed list of withdrawn bundles, for clinics without a network."""
    from fedmap.files.durable import write_durably

    with connect(profile, config) as client:
        found = client.released()
    if not found.signed_withdrawals:
        raise NotFoundError("nothing was released yet, so there is no list", hint="release a bundle first")
    write_durably(out, found.signed_withdrawals, mode=0o644)
    count = sum(bool(bundle.withdrawn_unix_ms) for bundle in found.bundles)
    if as_json:
        print_json({"file": str(out), "withdrawn": count})
        return
    print_text(
        f"Wrote {out}: {count} withdrawn bundle(s), signed",
        f"At the clinic: fedmap-site bundle verify FILE --withdrawals {out.name}",
    )


@bundle_app.command("link")
def link_command(
    bundle: Bundle,
    hours: Annotated[
        int | None, typer.Option(min=1, help="How long it may be used. Default: downloads.link_hours.")
    ] = None,
    profile: Profile = None,
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Make a link for one download with a browser. It is shown once."""
    from fedmap_aggregator.operator.message_json import message_json

    with connect(profile, config) as client:
        made = client.download_link(*_split(bundle), hours or 0)
        fingerprint = client.released().key_fingerprint
    if as_json:
        print_json({**message_json(made), "key_fingerprint": fingerprint})
        return
    print_text(
        f"One download of {bundle}, until {moment(made.expires_unix_ms)}:",
        f"  {made.url}",
        "Send the link by mail, and the fingerprint of the release key by another way:",
        f"  {fingerprint}",
    )


@bundle_app.command("download")
def download_command(
    bundle: Bundle,
    out: Annotated[
        Path | None, typer.Option(help="File or folder to write to. Default: here, under its own name.")
    ] = None,
    profile: Profile = None,
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Write the bundle's file, to hand it over by other means."""
    target = out or Path()
    path = target / f"{bundle}.fedmap" if target.is_dir() else target
    with connect(profile, config) as client, say.status(f"downloading {bundle}"):
        size, digest = client.download(*_split(bundle), path)
    if as_json:
        print_json({"bundle": bundle, "file": str(path), "bytes": size, "sha256": digest})
        return
    print_text(f"Wrote {path}: {size:,} bytes", f"  sha256  {digest}")


@bundle_app.command("key")
def key_command(profile: Profile = None, config: Config = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """The fingerprint of the release key, to be printed for clinics."""
    with connect(profile, config) as client:
        fingerprint = client.released().key_fingerprint
    if as_json:
        print_json({"key_fingerprint": fingerprint})
        return
    print_text(
        f"Release key {fingerprint}",
        "A clinic types it in once: fedmap-site bundle install FILE --fingerprint FINGERPRINT",
    )


def _split(bundle: str) -> tuple[str, int]:
    found = _BUNDLE.fullmatch(bundle)
    assert found is not None  # `_bundle_name` has let it pass
    return found["name"], int(found["version"])


def _newest(client: OperatorClient, name: str) -> tuple[str, int]:
    return name, max(bundle.version for bundle in client.released(name).bundles)


def _state(bundle: pb.ReleasedBundle) -> str:
    if bundle.withdrawn_unix_ms:
        return f"withdrawn: {bundle.withdrawn}"
    if bundle.expires_unix_ms <= datetime.now(UTC).timestamp() * 1000:
        return "expired"
    return "valid" if bundle.evaluated else "valid, not evaluated"


def _facts(bundle: pb.ReleasedBundle) -> tuple[str, ...]:
    return (
        f"  study        {bundle.study}, round {bundle.round}",
        f"  tier         {bundle.tier}: {'fine-tune and predict' if bundle.tier == 2 else 'predict only'}",
        f"  expires      {moment(bundle.expires_unix_ms)}",
        f"  size         {bundle.size:,} bytes",
        f"  sha256       {bundle.sha256}",
        f"  state        {_state(bundle)}",
    )
