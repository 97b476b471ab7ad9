"""The agent and the real aggregator, as processes over real mutual TLS: identity, revocation, files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import FedmapError, NotAllowedError
from common.service_config import read_config
from lab.local_federation import LocalFederation
from site_agent.config import SiteConfig
from site_agent.connection import Connection
from site_agent.identity_files import read_identity
from site_agent.renewal import Renewal
from site_agent.routes import route_of
from site_agent.wiring import Site, now
from tests.services.outcome import assert_same_as_simulated
from tests.services.studies import SmallStudy, assemble, operator, small_study, start

FEW_TURNS = 40


@pytest.fixture
def study(tmp_path: Path) -> SmallStudy:
    return small_study(tmp_path, sites={"a": 90, "b": 70}, rounds=2)


@pytest.fixture
def federation(tmp_path: Path, study: SmallStudy) -> Iterator[LocalFederation]:
    with LocalFederation(tmp_path / "federation") as made:
        assemble(made, study)
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
    with pytest.raises(FedmapError, match="code 3"):
        federation.site("a", "doctor")


def test_a_study_through_files_and_review_gives_the_same_models(
    federation: LocalFederation, study: SmallStudy, tmp_path: Path
) -> None:
    """Neither site has a network: every task and answer is carried as a file, and released by a person."""
    simulated = study.simulated()
    for site in study.sites:
        policy = federation.site_folder(site.name) / "policy.toml"
        policy.write_text(policy.read_text().replace("automatic", "review"))
    start(federation, study)
    with operator(federation) as client:
        for _ in range(FEW_TURNS):
            (status,) = client.status(study.name).studies
            if status.phase == "complete":
                break
            for site in study.sites:
                carry(federation, study.name, site.name, tmp_path)
    assert status.phase == "complete", status
    assert_same_as_simulated(federation, study, status, simulated)


def carry(federation: LocalFederation, study: str, site: str, folder: Path) -> None:
    """One file to a site and its answer back, if something is open for it."""
    task, reply = folder / f"{site}.task", folder / f"{site}.reply"
    try:
        federation.aggregator("round", "export", study, "--site", site, "--out", str(task))
    except FedmapError:
        return  # nothing is open for this site now
    run = ("round", "run", str(task), "--out", str(reply), "--json")
    done = json.loads(federation.site(site, *run))
    if done["file"] is None:
        federation.site(site, "release", str(done["item"]), "--approver", "Dr Ada")
        federation.site(site, *run)
    federation.aggregator("round", "import", str(reply))
