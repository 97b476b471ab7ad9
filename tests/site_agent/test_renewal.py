"""The certificate renews itself in time, with a new key, and a crash never leaves half an identity."""

from __future__ import annotations

import contextlib
import datetime
import os
from pathlib import Path

import pytest

from fedmap.errors import ConfigError, IntegrityError, NotAllowedError
from fedmap.transport.client import Route
from fedmap.trust.certificates import certificate_facts
from fedmap.trust.pki import fits
from fedmap_site.identity import files as identity_files
from fedmap_site.identity.enrolment import RETRY_SECONDS, Renewal, read_authority, renewal_time
from fedmap_site.identity.files import GENERATIONS, read_identity, write_identity
from fedmap_site.link.connection import Connection
from tests.site_agent.federation_double import AggregatorDouble, Authority, now

DAY = datetime.timedelta(days=1)


def test_a_certificate_is_renewed_at_two_thirds_of_its_life(tmp_path: Path) -> None:
    identity = Authority().site(days=9)
    write_identity(tmp_path, identity)
    facts = certificate_facts(identity.certificate)
    renewal = Renewal(tmp_path, "a", None)
    moment = renewal_time(facts)
    assert facts.not_after - moment == (facts.not_after - facts.not_before) / 3
    assert not renewal.due(moment - datetime.timedelta(seconds=1))
    assert renewal.due(moment)


def test_a_certificate_of_the_trusts_own_pki_is_left_to_it(tmp_path: Path) -> None:
    own = Authority().site(days=1)
    external = identity_files.SiteIdentity(own.key, own.certificate, own.authority, external=True)
    write_identity(tmp_path, external)
    assert not Renewal(tmp_path, "a", None).due(now() + 30 * DAY)


def test_renewing_changes_key_and_certificate_and_the_connection_goes_on(tmp_path: Path) -> None:
    with AggregatorDouble() as aggregator:
        before = aggregator.authority.site()
        write_identity(tmp_path, before)
        renewal = Renewal(tmp_path, "a", None)
        with Connection(Route(aggregator.address), renewal.credentials()) as connection:
            renewal.renew(connection, now())
            after = read_identity(tmp_path)
            assert connection.hello("1.0").tier == 1
    assert after.key != before.key
    assert fits(after.key, after.certificate)
    assert not renewal.due(now())


def test_a_refused_renewal_keeps_the_old_identity_and_waits_before_the_next_attempt(tmp_path: Path) -> None:
    with AggregatorDouble() as aggregator:
        old = aggregator.authority.site(days=1)
        write_identity(tmp_path, old)
        aggregator.refuse["Renew"] = NotAllowedError("revoked", hint="ask the operator")
        renewal = Renewal(tmp_path, "a", None)
        moment = now()
        with (
            Connection(Route(aggregator.address), renewal.credentials()) as connection,
            pytest.raises(NotAllowedError),
        ):
            renewal.renew(connection, moment)
    assert read_identity(tmp_path) == old
    late = renewal_time(renewal.facts)
    assert renewal.due(max(late, moment + datetime.timedelta(seconds=RETRY_SECONDS)))
    assert not renewal.due(moment + datetime.timedelta(seconds=RETRY_SECONDS - 1))


def test_a_certificate_from_a_foreign_authority_is_not_put_in_force(tmp_path: Path) -> None:
    with AggregatorDouble() as aggregator:
        old = aggregator.authority.site()
        write_identity(tmp_path, old)
        renewal = Renewal(tmp_path, "a", None)
        with Connection(Route(aggregator.address), renewal.credentials()) as connection:
            connection.hello("1.0")
            aggregator.authority = Authority()
            with pytest.raises(IntegrityError):
                renewal.renew(connection, now())
    assert read_identity(tmp_path) == old


class _Killed(BaseException):
    """Stands for kill −9: nothing after it runs."""


@pytest.mark.parametrize("step", range(1, 12))
def test_a_kill_at_any_step_of_the_switch_leaves_one_whole_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    authority = Authority()
    old, new = authority.site(), authority.site()
    write_identity(tmp_path, old)
    steps = iter(range(1, 1000))
    killed = False

    def counted(name: str) -> None:
        real = getattr(os, name)

        def call(*args: object, **kwargs: object) -> object:
            nonlocal killed
            if killed or next(steps) == step:
                killed = True
                raise _Killed
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)

    with monkeypatch.context():
        for name in ("replace", "rename", "symlink", "fsync"):
            counted(name)
        with contextlib.suppress(_Killed):
            write_identity(tmp_path, new)
        monkeypatch.undo()
    found = read_identity(tmp_path)
    assert found in (old, new)
    assert fits(found.key, found.certificate)
    write_identity(tmp_path, new)
    assert read_identity(tmp_path) == new
    assert len(list((tmp_path / GENERATIONS).iterdir())) == 1


def test_a_ca_bundle_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    assert read_authority(None) is None
    with pytest.raises(ConfigError, match="ca_bundle"):
        read_authority(tmp_path / "missing.pem")
    (tmp_path / "empty.pem").write_bytes(b"")
    with pytest.raises(ConfigError):
        read_authority(tmp_path / "empty.pem")
