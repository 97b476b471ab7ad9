"""Bundles for sites, who list and fetch them, and for the operator, who releases and withdraws them.

Values in, values out. What a bundle holds is `release.signing`, who may see it is `release.catalogue`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

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


class BundleHandler:
    """BundleService."""

    def __init__(
        self,
        catalogue: BundleCatalogue,
        store: Store,
        metrics: AggregatorMetrics,
        clock_ms: Callable[[], int],
    ) -> None:
        self._catalogue = catalogue
        self._store = store
        self._metrics = metrics
        self._clock_ms = clock_ms

    def list_bundles(self, caller: Caller) -> values.ListBundlesResponse:
        return values.ListBundlesResponse(
            tuple(self._bundle(row) for row in self._catalogue.visible(caller.tier))
        )

    def fetch(self, caller: Caller, request: values.FetchBundleRequest) -> Iterator[bytes]:
        """The chunks of a bundle; the server makes messages of them."""
        row = self._catalogue.fetchable(caller.tier, request.name, request.version)
        sent = 0
        for chunk in file_chunks(self._catalogue.path(row), request.offset):
            self._metrics.sent(len(chunk))
            sent += len(chunk)
            yield chunk
        if sent:
            detail = {"by": "grpc", "sha256": row.file_digest}
            with self._store.transaction() as transaction:
                transaction.audit.append(
                    caller.actor, "bundle.download", row.file_name, detail, self._clock_ms()
                )

    def get_withdrawals(self) -> values.GetWithdrawalsResponse:
        return values.GetWithdrawalsResponse(self._catalogue.withdrawals()[1])

    def _bundle(self, row: BundleRow) -> values.Bundle:
        return values.Bundle(
            name=row.name,
            version=row.version,
            file_name=row.file_name,
            size=row.size,
            sha256=row.file_digest,
            tier=row.tier,
            title=self._catalogue.manifest(row).title,
            expires_unix_ms=row.expires_at,
            withdrawn=row.reason,
            study=row.study,
            released_unix_ms=row.released_at,
        )


class ReleaseHandler:
    """The operator's calls about bundles."""

    def __init__(
        self,
        release: BundleRelease,
        catalogue: BundleCatalogue,
        links: DownloadLinks,
        link_base: Callable[[], str],
        metrics: AggregatorMetrics,
    ) -> None:
        """`link_base` gives https://host:port of the downloads; empty while they are off."""
        self._release = release
        self._catalogue = catalogue
        self._links = links
        self._link_base = link_base
        self._metrics = metrics
        self._log = get_logger()

    def release(self, caller: Caller, request: values.ReleaseBundleRequest) -> values.ReleaseBundleResponse:
        order = ReleaseOrder(
            request.study, request.round or None, request.tier or 2, request.expires_unix_ms or None
        )
        row, made = self._release.release(order, caller.actor)
        if made:
            self._log.info("bundle_released", study=row.study, round=row.round, digest=row.file_digest)
        return values.ReleaseBundleResponse(self._released(row), made, self._catalogue.key_fingerprint)

    def list_released(self, request: values.ListReleasedRequest) -> values.ListReleasedResponse:
        card = ""
        if request.version:
            rows = [self._catalogue.row(request.name, request.version)]
            card = model_card(self._catalogue.manifest(rows[0]))
        else:
            rows = [row for row in self._catalogue.rows() if request.name in ("", row.name)]
        if request.name and not rows:
            raise NotFoundError(
                f"no bundle is called {shown(request.name)}", hint="`bundle list` shows all that there are"
            )
        return values.ListReleasedResponse(
            bundles=tuple(map(self._released, rows)),
            key_fingerprint=self._catalogue.key_fingerprint,
            signed_withdrawals=self._catalogue.withdrawals()[1],
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
        known = self._catalogue.row(request.name, request.version)
        row = self._release.withdraw(known, reason, caller.actor)
        self._log.info("bundle_withdrawn", study=row.study, digest=row.file_digest, actor=caller.actor)
        serial, _ = self._catalogue.withdrawals()
        return values.WithdrawBundleResponse(bundle=self._released(row), serial=serial)

    def make_link(
        self, caller: Caller, request: values.MakeDownloadLinkRequest
    ) -> values.MakeDownloadLinkResponse:
        row = self._catalogue.row(request.name, request.version)
        self._catalogue.check_stands(row)
        base = self._link_base()
        if not base:
            raise StateError(
                "downloads over HTTPS are off, so a link would lead nowhere",
                hint='set listen = "0.0.0.0:8444" under [downloads] in the configuration, and restart',
            )
        token, expires = self._links.make(row, request.valid_hours, caller.actor)
        self._log.info("download_link_made", digest=row.file_digest, actor=caller.actor)
        return values.MakeDownloadLinkResponse(url=f"{base}/d/{token}", expires_unix_ms=expires)

    def download(self, request: values.DownloadBundleRequest) -> Iterator[bytes]:
        """As the sites get it; a withdrawn one too, so that it can be looked into."""
        row = self._catalogue.row(request.name, request.version)
        for chunk in file_chunks(self._catalogue.path(row)):
            self._metrics.sent(len(chunk))
            yield chunk

    def _released(self, row: BundleRow) -> values.ReleasedBundle:
        manifest = self._catalogue.manifest(row)
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
