"""`fedmap-site enrol`: the site's certificate, over the network, from its own PKI, or through an airlock."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmap.process.command_line import moment, print_aside
from fedmap_site.cli.options import Here, now

if TYPE_CHECKING:
    from fedmap.trust.certificates import CertificateFacts
    from fedmap_site.config import SiteConfig


def enrol_command(
    given: Here,
    joining: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="The joining file of the operator.")
    ] = None,
    token: Annotated[
        str, typer.Option(envvar="FEDMAP_SITE_TOKEN", help="The one-time token of the invitation.")
    ] = "",
    ca_fingerprint: Annotated[
        str,
        typer.Option(
            "--ca-fingerprint",
            "--fingerprint",
            help="Of the federation's authority, as told by the operator.",
        ),
    ] = "",
    certificate: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Own PKI: the site's certificate (PEM).")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Own PKI: its private key (PEM).")
    ] = None,
    authority: Annotated[
        Path | None,
        typer.Option(
            "--ca", exists=True, dir_okay=False, help="Own PKI: the authority (PEM); default: ca_bundle."
        ),
    ] = None,
    offline_request: Annotated[
        Path | None, typer.Option(dir_okay=False, help="No network: write the request to this file.")
    ] = None,
    offline_certificate: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="No network: the file that came back.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Replace the certificate that this site has already.")
    ] = False,
    if_missing: Annotated[
        bool,
        typer.Option("--if-missing", help="Change nothing where there is a certificate: for start scripts."),
    ] = False,
    site: Annotated[str, typer.Option(help="The site's name; writes --config if there is none.")] = "",
    address: Annotated[
        str, typer.Option(help="The aggregator's host:port; writes --config if there is none.")
    ] = "",
) -> None:
    """Get this site's certificate. The private key is made here and never leaves."""
    ways = [joining, certificate, offline_request, offline_certificate]
    if sum(way is not None for way in ways) != 1:
        raise typer.BadParameter(
            "give one of --joining, --certificate, --offline-request and --offline-certificate"
        )
    settings = _settings(given, site, address)
    from fedmap.files.durable import make_folder
    from fedmap_site.identity.enrolment import refuse_second_enrolment
    from fedmap_site.identity.files import is_enrolled

    state = settings.site.state
    make_folder(state)
    if if_missing and is_enrolled(state):
        given.tell(
            {"site": settings.site.name, "state": str(state), "made": False},
            f"{settings.site.name} has a certificate already; nothing was changed",
        )
        return
    refuse_second_enrolment(state, again)
    if offline_request is not None:
        _write_request(given, settings, _needed(token, "--token"), offline_request)
        return
    if joining is not None:
        fingerprint = _needed(ca_fingerprint, "--ca-fingerprint")
        facts = _over_network(settings, joining, _needed(token, "--token"), fingerprint)
    elif offline_certificate is not None:
        from fedmap_site.identity.enrolment import take_certificate

        fingerprint = _needed(ca_fingerprint, "--ca-fingerprint")
        facts = take_certificate(state, settings.site.name, offline_certificate, fingerprint, now())
    else:
        facts = _own_pki(settings, certificate, key, authority)
    _record(settings, facts)
    release_key = _learn_release_key(given) if joining is not None else ""
    given.tell(
        {
            "site": settings.site.name,
            "serial": facts.serial,
            "ends": facts.not_after.isoformat(),
            "state": str(state),
            "release_key": release_key,
            "made": True,
        },
        f"{settings.site.name} is enrolled. Its certificate is valid until {moment(facts.not_after)}.",
        f"Bundles are believed under the release key {release_key}." if release_key else None,
        "Next: `fedmap-site doctor` checks everything; `fedmap-site studies` lists what is offered.",
    )


def _settings(given: Here, site: str, address: str) -> SiteConfig:
    """The configuration, which must not contradict the invitation; the first one where there is none."""
    from fedmap.errors import ConfigError

    if not given.config.exists() and site and address:
        from fedmap_site.config import write_first_config

        print_aside(*(f"Wrote {path}" for path in write_first_config(given.config, site, address)))
    settings = given.settings()
    pairs = (
        ("site.name", settings.site.name, site),
        ("aggregator.address", settings.aggregator.address, address),
    )
    wrong = tuple(
        f"{where}: is {has}, the invitation is for {said}"
        for where, has, said in pairs
        if said not in ("", has)
    )
    if wrong:
        raise ConfigError(
            str(given.config), wrong, hint="Correct the file, or leave --site and --address out."
        )
    return settings


def _needed(value: str, option: str) -> str:
    if not value.strip():
        raise typer.BadParameter(f"{option} is needed here")
    return value.strip()


def _over_network(settings: SiteConfig, joining: Path, token: str, fingerprint: str) -> CertificateFacts:
    from fedmap.transport.client import Credentials
    from fedmap_site.identity.enrolment import (
        accept_certificate,
        new_request,
        read_authority,
        read_joining,
        settle,
    )
    from fedmap_site.link.connection import Connection
    from fedmap_site.link.https import route_of
    from fedmap_site.wiring import software_version

    found = read_joining(joining, fingerprint)
    name = settings.site.name
    request = new_request(name)
    trusted = read_authority(settings.aggregator.ca_bundle) or found.authority
    with Connection(
        route_of(settings.aggregator), Credentials(found.certificate, found.key, trusted)
    ) as connection:
        issued = connection.enrol(name, token, request.csr, software_version())
    identity = accept_certificate(name, request.key, issued.certificate_pem, found.authority, now())
    return settle(settings.site.state, identity)


def _own_pki(
    settings: SiteConfig, certificate: Path | None, key: Path | None, authority: Path | None
) -> CertificateFacts:
    from fedmap_site.identity.enrolment import adopt_external

    trusted = authority or settings.aggregator.ca_bundle
    if certificate is None or key is None or trusted is None:
        raise typer.BadParameter("--certificate needs --key, and --ca or [aggregator] ca_bundle")
    return adopt_external(settings.site.state, settings.site.name, certificate, key, trusted, now())


def _write_request(given: Here, settings: SiteConfig, token: str, out: Path) -> None:
    from fedmap_site.identity.enrolment import write_request

    write_request(settings.site.state, settings.site.name, token, out, now())
    given.tell(
        {"site": settings.site.name, "file": str(out)},
        f"Wrote {out}. It holds the token: treat it as a secret until it has been used.",
        f"At the centre: fedmap-aggregator round import {out.name}",
        "With the file that comes back: fedmap-site enrol --offline-certificate FILE --ca-fingerprint FP",
    )


def _learn_release_key(given: Here) -> str:
    """First contact: pin the key that signs bundles. The enrolment stands whatever comes of it."""
    from fedmap.errors import FedmapError
    from fedmap_site.cli.options import AtShelf, pin_release_key

    try:
        with given.site().connect() as connection:
            return pin_release_key(AtShelf(config=given.config).shelf(), connection)
    except FedmapError as error:
        print_aside(f"No release key was learnt: {error}")
        return ""


def _record(settings: SiteConfig, facts: CertificateFacts) -> None:
    from fedmap_site.wiring import Site

    detail = {"ends": facts.not_after.isoformat(), "fingerprint": facts.fingerprint}
    Site(settings).audit.append("site.enrolled", facts.serial, detail, "command line")
