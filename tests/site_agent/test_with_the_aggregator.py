"""The agent and the real aggregator over real mutual TLS: an identity from its enrolment to its end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmap.errors import FedmapError, NotAllowedError
from fedmap.process.settings import read_config
from fedmap_lab.local.federation import LocalFederation
from fedmap_site.config import SiteConfig
from fedmap_site.identity.enrolment import Renewal
from fedmap_site.identity.files import read_identity
from fedmap_site.link.connection import Connection
from fedmap_site.link.https import route_of
from fedmap_site.wiring import Site, now
from tests.services.forked_federation import ForkedFederation
from tests.services.studies import assemble, small_study


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[LocalFederation]:
    with ForkedFederation(tmp_path / "federation") as made:
        assemble(made, small_study(tmp_path, sites={"a": 90, "b": 70}, rounds=2))
        yield made


def site_of(federation: LocalFederation, name: str) -> Site:
    return Site(read_config(federation.site_folder(name) / "site.toml", SiteConfig))


def test_identity_from_enrolment_to_revocation(federation: LocalFederation) -> None:
    found = json.loads(federation.site("a", "doctor", "--json"))
    assert {check["status"] for check in found} <= {"ok", "warn"}

    site = site_of(federation, "a")
    folder, before = site.config.site.state, read_identity(site.config.site.state)
    renewal = Renewal(folder, "a", None)
    with Connection(route_of(site.config.aggregator), renewal.credentials()) as connection:
        renewal.renew(connection, now())
        assert connection.hello("1.0").tier == 1
    assert read_identity(folder).key != before.key

    invitation = json.loads(federation.aggregator("invite", "b", "--tier", "1", "--json"))
    enrol = (
        *("enrol", "--again", "--joining"),
        str(federation.aggregator_folder / "state" / "pki" / "joining.pem"),
        *("--token", str(invitation["token"]), "--ca-fingerprint", str(invitation["ca_fingerprint"])),
    )
    with pytest.raises(FedmapError, match="token"):
        federation.site("a", *enrol)  # another site's token
    federation.site("b", *enrol)
    with pytest.raises(FedmapError, match="token"):
        federation.site("b", *enrol)  # used

    federation.aggregator("revoke", "a", "--yes", "--reason", "test")
    with site.connect() as connection, pytest.raises(NotAllowedError):
        connection.hello("1.0")
    with pytest.raises(FedmapError, match="ended with 3"):
        federation.site("a", "doctor")
