"""Bundles for sites, who list and fetch them, and for the operator, who releases and withdraws them.

Values in, values out. What a bundle holds is `release.signing`, who may see it is `release.catalogue`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from structlog.typing import FilteringBoundLogger

from fedmap.bundles.card.text import model_card
from fedmap.contract.v1 import values
from fedmap.errors import NotFoundError, RejectedError, StateError
from fedmap.names import shown
from fedmap.process.log import get_logger
from fedmap.transport.chunks import file_chunks
from fedmap_aggregator.identity.callers import Caller
from fedmap_aggregator.metrics import AggregatorMetrics
from fedmap_aggregator.release.catalogue import BundleCatalogue
from fedmap_aggregator.release.links import DownloadLinks
from fedmap_aggregator.release.signing import BundleRelease, ReleaseOrder
from fedmap_aggregator.store import BundleRow, Store

_REASON = 500


@dataclass(frozen=True)
class BundleHandler:
    """BundleService."""

    catalogue: BundleCatalogue
    store: Store
    metrics: AggregatorMetrics
    clock_ms: Callable[[], int]

    def list_bundles(self, caller: Caller) -> values.ListBundlesResponse:
        return values.ListBundlesResponse(
            tuple(self._bundle(row) for row in self.catalogue.visible(caller.tier))
        )

    def fetch(self, caller: Caller, request: values.FetchBundleRequest) -> Iterator[bytes]:
        """The chunks of a bundle; the server makes messages of them."""
        row = self.catalogue.fetchable(caller.tier, request.name, request.version)
        sent = 0
        for chunk in self.metrics.sending(file_chunks(self.catalogue.path(row), request.offset)):
            sent += len(chunk)
            yield chunk
        if sent:
            detail = {"by": "grpc", "sha256": row.file_digest}
            with self.store.transaction() as transaction:
                transaction.audit.append(
                    caller.actor, "bundle.download", row.file_name, detail, self.clock_ms()
                )

    def get_withdrawals(self) -> values.GetWithdrawalsResponse:
        return values.GetWithdrawalsResponse(self.catalogue.withdrawals()[1])

    def _bundle(self, row: BundleRow) -> values.Bundle:
        return values.Bundle(
            name=row.name,
            version=row.version,
            file_name=row.file_name,
            size=row.size,
            sha256=row.file_digest,
            tier=row.tier,
            title=self.catalogue.manifest(row).title,
            expires_unix_ms=row.expires_at,
            withdrawn=row.reason,
            study=row.study,
            released_unix_ms=row.released_at,
        )


@dataclass(frozen=True)
class ReleaseHandler:
    """The operator's calls about bundles."""

    signing: BundleRelease
    catalogue: BundleCatalogue
    links: DownloadLinks
    link_base: Callable[[], str]
    """https://host:port of the downloads; empty while they are off."""
    metrics: AggregatorMetrics
    log: FilteringBoundLogger = field(default_factory=get_logger, init=False)

    def release(self, caller: Caller, request: values.ReleaseBundleRequest) -> values.ReleaseBundleResponse:
        order = ReleaseOrder(
            request.study, request.round or None, request.tier or 2, request.expires_unix_ms or None
        )
        row, made = self.signing.release(order, caller.actor)
        if made:
            self.log.info("bundle_released", study=row.study, round=row.round, digest=row.file_digest)
        return values.ReleaseBundleResponse(self._released(row), made, self.catalogue.key_fingerprint)

    def list_released(self, request: values.ListReleasedRequest) -> values.ListReleasedResponse:
        card = ""
        if request.version:
            rows = [self.catalogue.row(request.name, request.version)]
            card = model_card(self.catalogue.manifest(rows[0]))
        else:
            rows = [row for row in self.catalogue.rows() if request.name in ("", row.name)]
        if request.name and not rows:
            raise NotFoundError(
                f"no bundle is called {shown(request.name)}", hint="`bundle list` shows all that there are"
            )
        return values.ListReleasedResponse(
            bundles=tuple(map(self._released, rows)),
            key_fingerprint=self.catalogue.key_fingerprint,
            signed_withdrawals=self.catalogue.withdrawals()[1],
            card=card,
        )

    def withdraw(
        self, caller: Caller, request: values.WithdrawBundleRequest
    ) -> values.WithdrawBundleResponse:
        reason = " ".join(request.reason.split())
        if not reason or len(reason) > _REASON:
            raise RejectedError(
                f"a withdrawal needs a reason of at most {_REASON} characters",
                hint="say in plain words what is wrong with the bundle; clinics read it",
            )
        known = self.catalogue.row(request.name, request.version)
        row = self.signing.withdraw(known, reason, caller.actor)
        self.log.info("bundle_withdrawn", study=row.study, digest=row.file_digest, actor=caller.actor)
        serial, _ = self.catalogue.withdrawals()
        return values.WithdrawBundleResponse(bundle=self._released(row), serial=serial)

    def make_link(
        self, caller: Caller, request: values.MakeDownloadLinkRequest
    ) -> values.MakeDownloadLinkResponse:
        row = self.catalogue.row(request.name, request.version)
        self.catalogue.check_stands(row)
        base = self.link_base()
        if not base:
            raise StateError(
                "downloads over HTTPS are off, so a link would lead nowhere",
                hint='set listen = "0.0.0.0:8444" under [downloads] in the configuration, and restart',
            )
        token, expires = self.links.make(row, request.valid_hours, caller.actor)
        self.log.info("download_link_made", digest=row.file_digest, actor=caller.actor)
        return values.MakeDownloadLinkResponse(url=f"{base}/d/{token}", expires_unix_ms=expires)

    def download(self, request: values.DownloadBundleRequest) -> Iterator[bytes]:
        """As the sites get it; a withdrawn one too, so that it can be looked into."""
        row = self.catalogue.row(request.name, request.version)
        return self.metrics.sending(file_chunks(self.catalogue.path(row)))

    def _released(self, row: BundleRow) -> values.ReleasedBundle:
        manifest = self.catalogue.manifest(row)
        return values.ReleasedBundle(
            name=row.name,
            version=row.version,
            file_name=row.file_name,
            study=row.study,
            round=row.round,
            tier=row.tier,
            title=manifest.title,
            size=row.size,
            sha256=row.file_digest,
            released_unix_ms=row.released_at,
            expires_unix_ms=row.expires_at,
            withdrawn=row.reason,
            withdrawn_unix_ms=row.withdrawn_at or 0,
            evaluated=any(tier.estimates for tier in manifest.performance),
            key_fingerprint=row.key_fingerprint,
        )
