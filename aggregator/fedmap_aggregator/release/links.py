"""One-time links for a clinic that has only a browser: made by the operator, spent by the last byte.

A link opens one bundle until it is spent or expires, so that a broken download can be resumed. Its token is
stored hashed. Pages and bytes are `downloads`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from fedmap.errors import NotFoundError, RejectedError, StateError
from fedmap.files.digests import sha256_hex
from fedmap.process.log import get_logger
from fedmap_aggregator.store import BundleRow, LinkRow, Store

HOUR_MS = 3_600_000
_LONGEST_HOURS = 24 * 90
_MOST_TOKEN = 200
_NEW = "ask whoever sent it for a new link"


class DownloadLinks:
    """All links of this aggregator. Safe to call from any thread."""

    def __init__(self, store: Store, hours: int, clock_ms: Callable[[], int]) -> None:
        self._store = store
        self._hours = hours
        self._clock_ms = clock_ms

    def make(self, row: BundleRow, hours: int, actor: str) -> tuple[str, int]:
        """A token for one download of this bundle, and when it ends (unix ms). 0 hours: the setting."""
        if hours > _LONGEST_HOURS:
            raise RejectedError(
                f"a download link is valid for at most {_LONGEST_HOURS} hours", hint="give fewer hours"
            )
        token, now = secrets.token_urlsafe(32), self._clock_ms()
        expires = now + (hours or self._hours) * HOUR_MS
        link = LinkRow(_hash(token), row.name, row.version, now, expires)
        with self._store.transaction() as transaction:
            transaction.links.add(link)
            detail = {"link": _short(link.token_hash), "expires": str(expires)}
            transaction.audit.append(actor, "bundle.link", row.file_name, detail, now)
        return token, expires

    def bundle_of(self, token: str) -> BundleRow:
        """What a link opens now; NotFoundError or StateError where it opens nothing."""
        found = None
        if 0 < len(token) <= _MOST_TOKEN:
            with self._store.reading() as transaction:
                link = transaction.links.get(_hash(token))
                if link is not None:
                    found = link, transaction.bundles.get(link.name, link.version)
        if found is None or found[1] is None:
            raise NotFoundError(
                "there is no such download link", hint=f"copy the whole link into the browser, or {_NEW}"
            )
        link, row = found[0], found[1]
        if link.spent_at is not None:
            raise StateError(
                "this download link has been used",
                hint=f"a link is good for one download; if it was not you who used it, say so, and {_NEW}",
            )
        if self._clock_ms() >= link.expires_at:
            raise StateError("this download link has expired", hint=_NEW)
        return row

    def spend(self, token: str, peer: str) -> None:
        """The last byte has gone out: the link is used up. A second time changes nothing."""
        digest, now = _hash(token), self._clock_ms()
        with self._store.transaction() as transaction:
            link = transaction.links.get(digest)
            if link is None or not transaction.links.spend(digest, now):
                return
            detail = {"link": _short(digest), "address": peer}
            subject = f"{link.name}-{link.version}.fedmap"
            transaction.audit.append(f"link:{_short(digest)}", "bundle.link_spent", subject, detail, now)
        get_logger().info("download_link_spent", peer=peer)


def _hash(token: str) -> str:
    return sha256_hex(token.encode("utf-8", "surrogateescape"))


def _short(digest: str) -> str:
    """Enough to find the link's other entries in the audit log."""
    return digest[:12]
