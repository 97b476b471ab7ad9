"""Sites, invitations and certificates in one transaction. Secrets come in hashed; names come in checked.

What a state or a revocation means for a call is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from fedmap.errors import NotFoundError, TokenError
from fedmap_aggregator.store.database.tables import certificates, invitations, sites, storable
from fedmap_aggregator.store.rows import CertificateRow, InvitationRow, SiteRow, SiteState

_NEW_TOKEN = "Ask the operator for a new invitation."


class SiteRecords:
    """The register of sites."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, name: str) -> SiteRow | None:
        row = self._connection.execute(select(sites).where(sites.c.name == name)).first()
        return None if row is None else _site(row)

    def list(self) -> tuple[SiteRow, ...]:
        """Sorted by name."""
        return tuple(sorted(map(_site, self._connection.execute(select(sites))), key=lambda site: site.name))

    def upsert(self, site: SiteRow) -> None:
        """Adds the site, or replaces what was known of it."""
        row = replace(site, region=storable(site.region), software_version=storable(site.software_version))
        changed = self._connection.execute(update(sites).where(sites.c.name == row.name).values(asdict(row)))
        if changed.rowcount == 0:
            self._connection.execute(insert(sites).values(asdict(row)))

    def set_state(self, name: str, state: SiteState) -> None:
        changed = self._connection.execute(update(sites).where(sites.c.name == name).values(state=state))
        if changed.rowcount == 0:
            raise NotFoundError(f"no site is called {name}", hint="List the sites, and check the spelling.")


class InvitationRecords:
    """One-time tokens, by their hashes. An invitation's site must be in the register first."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, token_hash: str, site: str, tier: int, region: str, expires: int) -> None:
        row = InvitationRow(token_hash, site, tier, storable(region), expires)
        self._connection.execute(insert(invitations).values(asdict(row)))

    def take(self, token_hash: str, now: int) -> InvitationRow:
        """Uses a token up, for one caller only; TokenError says why it cannot be used.

        Nothing is used up where the transaction fails later on: a caller that finds the token to be another
        site's raises, and the token stays as it was.
        """
        taken = self._connection.execute(
            update(invitations)
            .where(
                invitations.c.token_hash == token_hash,
                invitations.c.used_at.is_(None),
                invitations.c.withdrawn_at.is_(None),
                invitations.c.expires_at > now,
            )
            .values(used_at=now)
        )
        found = self._connection.execute(
            select(invitations).where(invitations.c.token_hash == token_hash)
        ).first()
        if found is None:
            raise TokenError(
                "the token is not one of this federation",
                hint="Copy the whole token, or ask the operator for a new invitation.",
            )
        row = InvitationRow(**found._mapping)
        if taken.rowcount == 1:
            return row
        if row.used_at is not None:
            raise TokenError("the token has been used", hint=_NEW_TOKEN)
        if row.withdrawn_at is not None:
            raise TokenError("the invitation was withdrawn", hint=_NEW_TOKEN)
        raise TokenError("the token has expired", hint=_NEW_TOKEN)

    def withdraw(self, site: str, now: int) -> int:
        """Shuts a site's unused tokens: it was revoked, or invited again. Returns how many there were."""
        changed = self._connection.execute(
            update(invitations)
            .where(
                invitations.c.site == site,
                invitations.c.used_at.is_(None),
                invitations.c.withdrawn_at.is_(None),
            )
            .values(withdrawn_at=now)
        )
        return changed.rowcount


class CertificateRecords:
    """Certificates that the federation's own authority gave out."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, certificate: CertificateRow) -> None:
        self._connection.execute(insert(certificates).values(asdict(certificate)))

    def list_of(self, role: str, name: str) -> tuple[CertificateRow, ...]:
        """Of one holder, the one that ends last first."""
        found = self._connection.execute(
            select(certificates)
            .where(certificates.c.role == role, certificates.c.name == name)
            .order_by(certificates.c.not_after.desc(), certificates.c.serial)
        )
        return tuple(CertificateRow(**row._mapping) for row in found)

    def list_role(self, role: str) -> tuple[CertificateRow, ...]:
        """Of all holders of one role, sorted by name."""
        found = self._connection.execute(
            select(certificates)
            .where(certificates.c.role == role)
            .order_by(certificates.c.name, certificates.c.not_after.desc(), certificates.c.serial)
        )
        return tuple(CertificateRow(**row._mapping) for row in found)

    def revoke_all(self, role: str, name: str, now: int) -> int:
        """From now on none of the holder's certificates is good. Returns how many were until now."""
        changed = self._connection.execute(
            update(certificates)
            .where(
                certificates.c.role == role,
                certificates.c.name == name,
                certificates.c.revoked_at.is_(None),
            )
            .values(revoked_at=now)
        )
        return changed.rowcount

    def is_revoked(self, serial: str) -> bool:
        """False also for a serial that was not given out here: an outside authority's, say."""
        found = self._connection.execute(
            select(certificates.c.revoked_at).where(certificates.c.serial == serial)
        )
        return found.scalar() is not None


def _site(row: Row[Any]) -> SiteRow:
    return SiteRow(**row._mapping)
