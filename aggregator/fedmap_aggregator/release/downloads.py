"""The catalogue behind the aggregator's HTTPS endpoint: who a visitor is, what they see, what they may take.

A visitor is a site, by a certificate of the federation, under the same table as over gRPC; or holds a
one-time link. Everybody else sees nothing but the withdrawals. Asked anew for every request, so that a
revocation acts at once. Pages, ranges and TLS are `fedmap.web`.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

from fedmap.errors import NotAllowedError, NotFoundError
from fedmap.names import shown
from fedmap.process.log import get_logger
from fedmap.trust.certificates import certificate_facts
from fedmap.web.catalogue import Access, Entry, Visitor
from fedmap_aggregator.identity.callers import Caller, IdentityResolver, authorise
from fedmap_aggregator.metrics import AggregatorMetrics
from fedmap_aggregator.release.catalogue import BundleCatalogue, parse_file_name
from fedmap_aggregator.release.links import DownloadLinks
from fedmap_aggregator.store import BundleRow, Store

HEADING = "Model bundles of the federation"
_FETCH = "/fedmap.v1.BundleService/FetchBundle"


class DownloadCatalogue:
    """For `fedmap.web.bundle_app`."""

    def __init__(
        self,
        catalogue: BundleCatalogue,
        links: DownloadLinks,
        resolver: IdentityResolver,
        store: Store,
        metrics: AggregatorMetrics,
        clock_ms: Callable[[], int],
    ) -> None:
        self._catalogue = catalogue
        self._links = links
        self._resolver = resolver
        self._store = store
        self._metrics = metrics
        self._clock_ms = clock_ms

    def allowed(self, visitor: Visitor) -> Access:
        try:
            self._caller(visitor)
        except NotAllowedError as error:
            return Access(False, f"{error.message[:1].upper()}{error.message[1:]}.", error.hint)
        return Access(True)

    def entries(self, visitor: Visitor) -> tuple[Entry, ...]:
        rows = self._rows(visitor)
        return tuple(
            Entry(
                manifest=self._catalogue.manifest(row),
                sha256=row.file_digest,
                size=row.size,
                may_download=self._catalogue.is_valid(row),
                withdrawn=row.reason if row.withdrawn_at is not None else "",
            )
            for row in rows
        )

    def open(self, visitor: Visitor, file_name: str) -> Path:
        name, version = parse_file_name(file_name)
        if visitor.token:
            row = self._links.bundle_of(visitor.token)
            if (row.name, row.version) != (name, version):
                raise NotFoundError(
                    f"this link does not lead to {shown(file_name)}", hint="open the link as it was sent"
                )
            self._catalogue.check_stands(row)
        else:
            row = self._catalogue.fetchable(self._caller(visitor).tier, name, version)
        return self._catalogue.path(row)

    def finished(self, visitor: Visitor, file_name: str) -> None:
        """Also for a certificate that was revoked while the bytes were on their way: they have gone out."""
        name, version = parse_file_name(file_name)
        row = self._catalogue.row(name, version)
        self._metrics.sent(row.size)
        if visitor.token:
            self._links.spend(visitor.token, visitor.address)
            return
        identity = certificate_facts(_pem(visitor)).identity
        actor = f"site:{identity.name}" if identity is not None else "site"
        detail = {"by": "https", "address": visitor.address, "sha256": row.file_digest}
        with self._store.transaction() as transaction:
            transaction.audit.append(actor, "bundle.download", file_name, detail, self._clock_ms())
        get_logger().info("bundle_downloaded", caller=actor, digest=row.file_digest, bytes=row.size)

    def withdrawals(self) -> bytes | None:
        return self._catalogue.withdrawals()[1] or None

    def key_fingerprint(self) -> str:
        return self._catalogue.key_fingerprint

    def _rows(self, visitor: Visitor) -> tuple[BundleRow, ...]:
        if visitor.token:
            return (self._links.bundle_of(visitor.token),)
        return self._catalogue.visible(self._caller(visitor).tier)

    def _caller(self, visitor: Visitor) -> Caller:
        """The site behind a certificate that TLS has verified; NotAllowedError otherwise."""
        caller = self._resolver.resolve(_pem(visitor), self._clock_ms())
        authorise(_FETCH, caller)
        return caller


def _pem(visitor: Visitor) -> bytes:
    if visitor.certificate_der is None:
        raise NotAllowedError(
            "this page is for the sites of the federation, and your browser shows no certificate",
            hint="ask the operator of the federation for a download link; an enrolled site fetches bundles "
            "with `fedmap-site bundle fetch`",
        )
    return ssl.DER_cert_to_PEM_cert(visitor.certificate_der).encode("ascii")
