"""`fedmap-site enrol`: the site's certificate, over the network, from its own PKI, or through an airlock."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmap_site.cli.output import (
    DEFAULT_CONFIG,
    Config,
    Json,
    load_config,
    moment,
    now,
    print_json,
    print_text,
    say,
)

if TYPE_CHECKING:
    from fedmap.trust.certificates import CertificateFacts
    from fedmap_site.config import SiteConfig


def enrol_command(
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
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Get this site's certificate. The private key is made here and never leaves."""
    ways = [joining, certificate, offline_request, offline_certificate]
    if sum(way is not None for way in ways) != 1:
        raise typer.BadParameter(
            "give one of --joining, --certificate, --offline-request and --offline-certificate"
        )
    settings = _settings(config, site, address)
    from fedmap.files.durable import make_folder
    from fedmap_site.identity.enrolment import refuse_second_enrolment
    from fedmap_site.identity.files import is_enrolled

    state = settings.site.state
    make_folder(state)
    if if_missing and is_enrolled(state):
        if as_json:
            print_json({"site": settings.site.name, "state": str(state), "made": False})
        else:
            print_text(f"{settings.site.name} has a certificate already; nothing was changed")
        return
    refuse_second_enrolment(state, again)
    if offline_request is not None:
        _write_request(settings, _needed(token, "--token"), offline_request, as_json)
        return
    if joining is not None:
        fingerprint = _needed(ca_fingerprint, "--ca-fingerprint")
        facts = _over_network(settings, joining, _needed(token, "--token"), fingerprint)
    elif offline_certificate is not None:
        from fedmap_site.identity.enrolment_files import take_certificate

        fingerprint = _needed(ca_fingerprint, "--ca-fingerprint")
        facts = take_certificate(state, settings.site.name, offline_certificate, fingerprint, now())
    else:
        facts = _own_pki(settings, certificate, key, authority)
    _record(settings, facts)
    release_key = _learn_release_key(settings, config) if joining is not None else ""
    if as_json:
        ends, name = facts.not_after.isoformat(), settings.site.name
        enrolled = {"site": name, "serial": facts.serial, "ends": ends, "state": str(state)}
        print_json({**enrolled, "release_key": release_key, "made": True})
        return
    print_text(
        f"{settings.site.name} is enrolled. Its certificate is valid until {moment(facts.not_after)}.",
        *([f"Bundles are believed under the release key {release_key}."] if release_key else []),
        "Next: `fedmap-site doctor` checks everything; `fedmap-site studies` lists what is offered.",
    )


def _settings(config: Path, site: str, address: str) -> SiteConfig:
    """The configuration, which must not contradict the invitation; the first one where there is none."""
    from fedmap.errors import ConfigError

    if not config.exists() and site and address:
        from fedmap_site.first_config import write_first_config

        for path in write_first_config(config, site, address):
            say.print(f"Wrote {path}", markup=False, highlight=False, soft_wrap=True)
    settings = load_config(config)
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
        raise ConfigError(str(config), wrong, hint="Correct the file, or leave --site and --address out.")
    return settings


def _needed(value: str, option: str) -> str:
    if not value.strip():
        raise typer.BadParameter(f"{option} is needed here")
    return value.strip()


def _over_network(settings: SiteConfig, joining: Path, token: str, fingerprint: str) -> CertificateFacts:
    from fedmap_site.identity.enrolment import accept_certificate, new_request, read_joining, settle
    from fedmap_site.identity.renewal import read_authority
    from fedmap_site.link.connection import Connection, Credentials
    from fedmap_site.link.routes import route_of
    from fedmap_site.wiring import software_version

    found = read_joining(joining, fingerprint)
    name = settings.site.name
    request = new_request(name)
    trusted = read_authority(settings.aggregator.ca_bundle) or found.authority
    with Connection(
        route_of(settings.aggregator), Credentials(found.certificate, found.key, trusted)
    ) as connection:
        certificate, _ = connection.enrol(name, token, request.csr, software_version())
    identity = accept_certificate(name, request.key, certificate, found.authority, now())
    return settle(settings.site.state, identity)


def _own_pki(
    settings: SiteConfig, certificate: Path | None, key: Path | None, authority: Path | None
) -> CertificateFacts:
    from fedmap_site.identity.enrolment import adopt_external

    trusted = authority or settings.aggregator.ca_bundle
    if certificate is None or key is None or trusted is None:
        raise typer.BadParameter("--certificate needs --key, and --ca or [aggregator] ca_bundle")
    return adopt_external(settings.site.state, settings.site.name, certificate, key, trusted, now())


def _write_request(settings: SiteConfig, token: str, out: Path, as_json: bool) -> None:
    from fedmap_site.identity.enrolment_files import write_request

    write_request(settings.site.state, settings.site.name, token, out, now())
    if as_json:
        print_json({"site": settings.site.name, "file": str(out)})
        return
    print_text(
        f"Wrote {out}. It holds the token: treat it as a secret until it has been used.",
        f"At the centre: fedmap-aggregator round import {out.name}",
        "With the file that comes back: fedmap-site enrol --offline-certificate FILE --ca-fingerprint FP",
    )


def _learn_release_key(settings: SiteConfig, config: Path) -> str:
    """First contact: pin the key that signs bundles. The enrolment stands whatever comes of it."""
    from fedmap.errors import FedmapError
    from fedmap_site.cli.bundles.fetch import pin_release_key
    from fedmap_site.cli.bundles.shelf import open_store
    from fedmap_site.wiring import Site

    try:
        with Site(settings).connect() as connection:
            return pin_release_key(open_store(None, config), connection)
    except FedmapError as error:
        say.print("No release key was learnt: ", end="")
        say.print(str(error), markup=False, highlight=False, soft_wrap=True)
        return ""


def _record(settings: SiteConfig, facts: CertificateFacts) -> None:
    from fedmap_site.wiring import Site

    detail = {"ends": facts.not_after.isoformat(), "fingerprint": facts.fingerprint}
    Site(settings).audit.append("site.enrolled", facts.serial, detail, "command line")
