"""`fedmap-aggregator invite | sites | revoke`: who may take part. Each is one call over mutual TLS."""

from __future__ import annotations

import shlex
import time
from typing import Annotated

import typer

from fedmap.process.command_line import PlainTable, moment
from fedmap_aggregator.cli.options import Anywhere, Yes
from fedmap_aggregator.operator.message_json import message_json

Site = Annotated[str, typer.Argument(help="The site's name: lower-case letters, digits, - and _.")]


def invite_command(
    given: Anywhere,
    site: Site,
    tier: Annotated[int, typer.Option(min=1, max=3, help="1 trains, 2 fine-tunes, 3 predicts.")],
    region: Annotated[str, typer.Option(help="For reports by region; may be left out.")] = "",
    hours: Annotated[
        int, typer.Option(min=0, help="How long the token is valid; 0: as the aggregator is configured.")
    ] = 0,
) -> None:
    """Invite a site: print its one-time token and what to send it. Also for a site that lost its key."""
    from fedmap_aggregator.identity.profile import read_profile

    address = read_profile(given.chosen_profile()).address
    with given.connect() as client:
        invitation = client.invite(site, tier, region, hours)
    joining = _joining_file(given)
    command = _enrol_command(site, address, invitation.token, invitation.ca_fingerprint)
    form = {
        "site": site,
        "tier": tier,
        "region": region,
        **message_json(invitation),
        "joining_file": joining,
        "command": command,
    }
    if not invitation.token:
        given.tell(
            form,
            f"{site} may join as a T{tier} site. This federation uses certificates of your own PKI:",
            f"  have it issue a client certificate with the URI SAN fedmap:site:{site}",
            f"  CA fingerprint  {invitation.ca_fingerprint}",
        )
        return
    given.tell(
        form,
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


def sites_command(given: Anywhere) -> None:
    """List all sites: state, certificate, last sign of life."""
    from fedmap_aggregator.operator.status import plain, span

    with given.connect() as client:
        sites = client.sites()
    now_ms = time.time_ns() // 1_000_000
    columns = ("site", "tier", "region", "state", "certificate ends", "last seen", "doing", "version")
    rows = [
        (
            plain(site.name),
            f"T{site.tier}",
            plain(site.region),
            site.state,
            moment(site.certificate_ends_unix_ms),
            f"{span(now_ms - site.last_seen_unix_ms)} ago" if site.last_seen_unix_ms else "-",
            plain(site.stage, 20),
            plain(site.software_version, 20),
        )
        for site in sites
    ]
    none = "No sites yet. `fedmap-aggregator invite SITE --tier 1` invites one."
    given.tell([message_json(site) for site in sites], PlainTable(columns, rows) if rows else none)


def revoke_command(
    given: Anywhere,
    site: Site,
    reason: Annotated[str, typer.Option(help="For the audit log.")] = "",
    yes: Yes = False,
) -> None:
    """Shut a site out from its next call on. Its studies go on without it."""
    if not yes and not given.as_json:
        typer.confirm(f"Revoke every certificate of {site} and shut it out of its studies?", abort=True)
    with given.connect() as client:
        client.revoke(site, reason)
    given.tell(
        {"site": site, "state": "revoked", "reason": reason},
        f"{site} is shut out from its next call on. Its running studies go on without it.",
        f"To let it back in: fedmap-aggregator invite {site} --tier TIER",
    )


def _joining_file(given: Anywhere) -> str:
    """Where the joining certificate is, if this is the aggregator's machine; else its name."""
    if not given.config.is_file():
        return "joining.pem (from the pki folder of the aggregator's state folder)"
    from fedmap_aggregator.identity.initialise import joining_path

    return str(joining_path(given.settings()))


def _enrol_command(site: str, address: str, token: str, fingerprint: str) -> str:
    options = {"--site": site, "--address": address, "--fingerprint": fingerprint, "--token": token}
    given = " ".join(f"{option} {shlex.quote(value)}" for option, value in options.items())
    return f"fedmap-site enrol --joining joining.pem {given}"
