"""Whom the pages are shown to and what is on them: the values between a service and `bundle_app`.

The service decides: the aggregator by certificates, tiers and links, a site agent by its access list.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedmap.bundles.manifest import Manifest


@dataclass(frozen=True)
class Visitor:
    """Who asks. The certificate has been verified by TLS; whether it is revoked has not been asked."""

    certificate_der: bytes | None
    address: str
    """IPv4 or IPv6; an IPv4 address in IPv6 clothes is given as IPv4."""
    token: str
    """Of a download link; empty without one."""


@dataclass(frozen=True)
class Access:
    """Whether the visitor may see the list, and if not, why and what to do: sentences for that person."""

    listing: bool
    reason: str = ""
    hint: str = "Ask who runs this server for a download link."


@dataclass(frozen=True)
class Entry:
    """One bundle as this visitor may see it."""

    manifest: Manifest
    sha256: str
    size: int
    may_download: bool
    withdrawn: str
    """Why it was withdrawn; empty while it stands."""


class Catalogue(Protocol):
    """What a service offers. Called in threads of their own, several at once."""

    def allowed(self, visitor: Visitor) -> Access:
        """Asked for everything but download links, for which the link itself is the permission."""

    def entries(self, visitor: Visitor) -> tuple[Entry, ...]:
        """What this visitor may see, in the order of the page. For a link that is not good: a typed error."""

    def open(self, visitor: Visitor, file_name: str) -> Path:
        """The file to send; `NotFoundError`, `NotAllowedError` or `StateError` where it may not be sent."""

    def finished(self, visitor: Visitor, file_name: str) -> None:
        """The file's last byte has reached the visitor."""

    def withdrawals(self) -> bytes | None:
        """The signed list of withdrawn bundles; it is public. None before there is one."""

    def key_fingerprint(self) -> str:
        """Of the release key, as it stands on paper; empty while there is none, and nothing is offered."""
