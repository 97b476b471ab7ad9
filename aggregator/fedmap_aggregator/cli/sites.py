"""`fedmap-aggregator invite | sites | revoke`: who may take part. Each is one call over mutual TLS."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from fedmap_aggregator.cli.output import (
    DEFAULT_CONFIG,
    Config,
    Json,
    Profile,
    answer,
    connect,
    find_profile,
    load_config,
    moment,
    print_json,
    print_text,
)

Site = Annotated[str, typer.Argument(help="The site's name: lower-case letters, digits, - and _.")]


def invite_command(
    site: Site,
    tier: Annotated[int, typer.Option(min=1, max=3, help="1 trains, 2 fine-tunes, 3 predicts.")],
    region: Annotated[str, typer.Option(help="For reports by region; may be left out.")] = "",
    hours: Annotated[
        int, typer.Option(min=0, help="How long the token is valid; 0: as the aggregator is configured.")
    ] = 0,
    profile: Profile = None,
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Invite a site: print its one-time token and what to send it. Also for a site that lost its key."""
    from fedmap_aggregator.identity.profile import read_profile
    from fedmap_aggregator.operator.message_json import message_json

    address = read_profile(find_profile(profile, config)).address
    with connect(profile, config) as client:
        invitation = client.invite(site, tier, region, hours)
    joining = _joining_file(config)
    command = _enrol_command(site, address, invitation.token, invitation.ca_fingerprint)
    if as_json:
        print_json(
            {
                "site": site,
                "tier": tier,
                "region": region,
                **message_json(invitation),
                "joining_file": joining,
                "command": command,
            }
        )
        return
    if not invitation.token:
        print_text(
            f"{site} may join as a T{tier} site. This federation uses certificates of your own PKI:",
            f"  have it issue a client certificate with the URI SAN fedmap:site:{site}",
            f"  CA fingerprint  {invitation.ca_fingerprint}",
        )
        return
    print_text(
        f"Invitation of {site} (T{tier}), valid once and until {moment(invitation.expires_unix_ms)}",
        f"  token           {invitation.token}",
        f"  CA fingerprint  {invitation.ca_fingerprint}",
        "",
        "Send to the site:",
        f"  1. the file {joining} (not secret: it opens enrolment and nothing else)",
        "  2. by another way than the file, this command, to be run where its agent is installed:",
        "",
        f"     {command}",
        "",
        "The token is stored hashed and cannot be shown again; a new invitation replaces it.",
    )


def sites_command(profile: Profile = None, config: Config = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """List all sites: state, certificate, last sign of life."""
    from fedmap_aggregator.operator.message_json import message_json
    from fedmap_aggregator.operator.status import add_row, plain, plain_table, span

    with connect(profile, config) as client:
        sites = client.sites()
    if as_json:
        print_json([message_json(site) for site in sites])
        return
    if not sites:
        print_text("No sites yet. `fedmap-aggregator invite SITE --tier 1` invites one.")
        return
    now_ms = time.time_ns() // 1_000_000
    table = plain_table(
        "site", "tier", "region", "state", "certificate ends", "last seen", "doing", "version"
    )
    for site in sites:
        seen = f"{span(now_ms - site.last_seen_unix_ms)} ago" if site.last_seen_unix_ms else "-"
        add_row(
            table,
            plain(site.name),
            f"T{site.tier}",
            plain(site.region),
            site.state,
            moment(site.certificate_ends_unix_ms),
            seen,
            plain(site.stage, 20),
            plain(site.software_version, 20),
        )
    answer.print(table)


def revoke_command(
    site: Site,
    reason: Annotated[str, typer.Option(help="For the audit log.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    profile: Profile = None,
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Shut a site out from its next call on. Its studies go on without it."""
    if not yes and not as_json:
        typer.confirm(f"Revoke every certificate of {site} and shut it out of its studies?", abort=True)
    with connect(profile, config) as client:
        client.revoke(site, reason)
    if as_json:
        print_json({"site": site, "state": "revoked", "reason": reason})
        return
    print_text(
        f"{site} is shut out from its next call on. Its running studies go on without it.",
        f"To let it back in: fedmap-aggregator invite {site} --tier TIER",
    )


def _joining_file(config: Path) -> str:
    """Where the joining certificate is, if this is the aggregator's machine; else its name."""
    if not config.is_file():
        return "joining.pem (from the pki folder of the aggregator's state folder)"
    from fedmap_aggregator.identity.initialise import joining_path

    return str(joining_path(load_config(config)))


def _enrol_command(site: str, address: str, token: str, fingerprint: str) -> str:
    options = {"--site": site, "--address": address, "--fingerprint": fingerprint, "--token": token}
    given = " ".join(f"{option} {shlex.quote(value)}" for option, value in options.items())
    return f"fedmap-site enrol --joining joining.pem {given}"
