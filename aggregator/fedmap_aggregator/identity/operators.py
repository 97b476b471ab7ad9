"""Who may lead this federation: operators' certificates in the store, given out and revoked on this machine.

Works on the state folder with the authority's key, whether or not the aggregator runs; every change goes into
the audit log. Calls over the network cannot make operators, so a stolen profile cannot make others.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from fedmap.errors import ConflictError, FedmapError, NotFoundError
from fedmap.files.durable import write_durably
from fedmap.names import check_operator_name
from fedmap.trust.certificates import certificate_facts
from fedmap_aggregator.config import AggregatorConfig
from fedmap_aggregator.identity.initialise import add_operator, profile_path
from fedmap_aggregator.identity.profile import OperatorProfile, profile_text, read_profile
from fedmap_aggregator.store import CertificateRow, Store, Transaction

_ACTOR = "local"
_ROLE = "operator"


@dataclass(frozen=True)
class Operator:
    """One operator's newest certificate."""

    name: str
    serial: str
    ends_unix_ms: int
    revoked_unix_ms: int | None


def make_operator(
    config: AggregatorConfig, store: Store, name: str, out: Path, now: datetime.datetime
) -> OperatorProfile:
    """A new profile in the file `out`; its certificate is in the store before the file is there."""
    if out.exists():
        raise ConflictError(f"{out} exists already", hint="give --out a new file")
    profile = add_operator(config, name, now)
    with store.transaction() as transaction:
        _adopt_first(transaction, config)
        _record(transaction, profile)
        transaction.audit.append(_ACTOR, "operator.add", f"{_ROLE}:{name}", {}, _ms(now))
    write_durably(out, profile_text(profile).encode())
    return profile


def list_operators(config: AggregatorConfig, store: Store) -> tuple[Operator, ...]:
    """All of them, sorted by name, newest certificate first."""
    with store.reading() as transaction:
        known = transaction.certificates.list_role(_ROLE)
    rows = {row.serial: row for row in known}
    first = _first(config)
    if first is not None:
        rows.setdefault(first.serial, first)
    ordered = sorted(rows.values(), key=lambda row: (row.name, -row.not_after, row.serial))
    return tuple(Operator(row.name, row.serial, row.not_after, row.revoked_at) for row in ordered)


def revoke_operator(config: AggregatorConfig, store: Store, name: str, now: datetime.datetime) -> int:
    """None of the operator's certificates is good from the next call on; how many were until now."""
    check_operator_name(name)
    with store.transaction() as transaction:
        _adopt_first(transaction, config)
        if not transaction.certificates.list_of(_ROLE, name):
            raise NotFoundError(
                f"no operator is called {name}", hint="`fedmap-aggregator operator list` lists all of them"
            )
        revoked = transaction.certificates.revoke_all(_ROLE, name, _ms(now))
        transaction.audit.append(
            _ACTOR, "operator.revoke", f"{_ROLE}:{name}", {"certificates": str(revoked)}, _ms(now)
        )
    return revoked


def _adopt_first(transaction: Transaction, config: AggregatorConfig) -> None:
    """`init` makes the first operator before there is a database: its certificate is entered here."""
    first = _first(config)
    if first is None:
        return
    known = transaction.certificates.list_of(_ROLE, first.name)
    if all(row.serial != first.serial for row in known):
        transaction.certificates.add(first)


def _first(config: AggregatorConfig) -> CertificateRow | None:
    """The certificate of the profile in the state folder; None where it was taken away or is no good."""
    path = profile_path(config)
    if not path.is_file():
        return None
    try:
        return _row(read_profile(path))
    except FedmapError:
        return None  # doctor says what is wrong with it


def _record(transaction: Transaction, profile: OperatorProfile) -> None:
    transaction.certificates.add(_row(profile))


def _row(profile: OperatorProfile) -> CertificateRow:
    facts = certificate_facts(profile.certificate.encode())
    return CertificateRow(facts.serial, _ROLE, profile.name, _ms(facts.not_before), _ms(facts.not_after))


def _ms(moment: datetime.datetime) -> int:
    return int(moment.timestamp() * 1000)
