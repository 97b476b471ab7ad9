"""The only place where the aggregator's objects are made and joined, and where their life begins and
ends.

`serve` is the program: it runs until SIGTERM or Ctrl-C. `Aggregator` is the same without signals, for
whoever wants a server inside another program. Start in this order: lock, database, studies, clock, port;
the end is the same backwards, and every step of it happens even when another fails.
"""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from types import FrameType, TracebackType
from typing import Self

from fedmap.errors import FedmapError
from fedmap.process import log
from fedmap.process.addresses import host_of
from fedmap.process.telemetry import DiskSpace, TelemetryServer
from fedmap.trust.pki import certificate_facts
from fedmap.web.bundle_app import make_bundle_app
from fedmap.web.https_server import HttpsServer
from fedmap_aggregator.config import AggregatorConfig
from fedmap_aggregator.estimation.process import EstimationProcess
from fedmap_aggregator.estimation.queue import EstimationQueue
from fedmap_aggregator.gate.headers import GateLimits
from fedmap_aggregator.gate.intake import AnswerIntake
from fedmap_aggregator.identity.callers import IdentityResolver, SiteStanding
from fedmap_aggregator.identity.initialise import load_authority
from fedmap_aggregator.identity.release_key import load_release_key
from fedmap_aggregator.identity.server import ServerIdentity
from fedmap_aggregator.metrics import PREFIX, AggregatorMetrics
from fedmap_aggregator.release.catalogue import BundleCatalogue
from fedmap_aggregator.release.downloads import HEADING, DownloadCatalogue
from fedmap_aggregator.release.links import DownloadLinks
from fedmap_aggregator.release.signing import BundleRelease
from fedmap_aggregator.rpc.guard import CallGuard
from fedmap_aggregator.rpc.handlers.bundles import BundleHandler, ReleaseHandler
from fedmap_aggregator.rpc.handlers.drop import DropHandler, Signing
from fedmap_aggregator.rpc.handlers.enrolment import EnrolmentHandler, count_sites
from fedmap_aggregator.rpc.handlers.federation import FederationHandler
from fedmap_aggregator.rpc.handlers.operator import Invitations, OperatorHandler
from fedmap_aggregator.rpc.handlers.purge import PurgeHandler
from fedmap_aggregator.rpc.pace import PaceLimits
from fedmap_aggregator.rpc.server import AggregatorServer, GuardInterceptor
from fedmap_aggregator.rpc.services import contract_services, serve_table
from fedmap_aggregator.rpc.stalls import StallWatch
from fedmap_aggregator.store import Store
from fedmap_aggregator.store.layout import blob_folder, check_restored, make_store, state_lock, upkeep_lock
from fedmap_aggregator.studies.clock import StudyClock
from fedmap_aggregator.studies.file_sites import FileSites
from fedmap_aggregator.studies.liveness import Liveness
from fedmap_aggregator.studies.service import StudyService
from fedmap_aggregator.study_metrics import StudyMetrics
from fedmap_aggregator.upkeep.purge import StudyPurge
from fedmap_aggregator.upkeep.retention import Retention

_KIB = 1024


def clock_ms() -> int:
    """The aggregator's clock."""
    return time.time_ns() // 1_000_000


class StoreRegister:
    """The store, as far as identities ask it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def standing(self, site: str) -> SiteStanding | None:
        with self._store.reading() as transaction:
            row = transaction.sites.get(site)
        return None if row is None else SiteStanding(row.tier, row.state)

    def is_revoked(self, serial: str) -> bool:
        with self._store.reading() as transaction:
            return transaction.certificates.is_revoked(serial)


class Aggregator:
    """One running aggregator. Use it in a `with` block; `wait` returns when it can no longer work."""

    def __init__(self, config: AggregatorConfig, clock: Callable[[], int] = clock_ms) -> None:
        self._config = config
        self._clock_ms = clock
        self._stack = ExitStack()
        self._ended = threading.Event()
        self._failed = False
        self.metrics = AggregatorMetrics()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def telemetry_port(self) -> int | None:
        return self._telemetry.port if self._telemetry is not None else None

    @property
    def downloads_port(self) -> int | None:
        return self._downloads.port if self._downloads is not None else None

    def end(self) -> None:
        """Lets `wait` return."""
        self._ended.set()

    def wait(self) -> bool:
        """Until `end`, or until a part that the studies need has failed: False then."""
        self._ended.wait()
        return not self._failed

    def ready(self) -> str | None:
        """What keeps the aggregator from working; None when nothing does."""
        if not self._clock.alive:
            return "the clock of the studies has stopped"
        if not self._estimates.alive:
            return "the queue of computations has stopped"
        try:
            count_sites(self._store, self.metrics)
        except FedmapError as error:
            return f"the database does not answer ({error.code})"
        return None

    def _start(self, stack: ExitStack) -> None:
        config, metrics, limits = self._config, self.metrics, self._config.limits
        clock = self._clock_ms
        now = datetime.now(UTC)
        check_restored(config)
        authority = load_authority(config)
        stack.enter_context(state_lock(config))
        identity = ServerIdentity(config, authority, now)
        store = self._store = make_store(config)
        stack.callback(store.close)
        store.prepare()
        release_key = load_release_key(config, store, clock())
        process = EstimationProcess(blob_folder(config), longest_seconds=limits.estimation_minutes * 60)
        estimates = self._estimates = EstimationQueue(store, process, metrics, clock)
        stack.callback(estimates.stop)

        liveness = Liveness(int(limits.silent_after_seconds * 1000), clock())
        resolver = IdentityResolver(StoreRegister(store))
        file_sites = FileSites(config.server.state / "file_sites.json")
        service = StudyService(store, estimates.offer, liveness, file_sites, metrics, clock, limits.polls)
        metrics.registry.register(StudyMetrics(service.studies, liveness.presence, metrics.progress, clock))
        metrics.registry.register(DiskSpace(PREFIX, config.server.state))
        gate = GateLimits(limits.norm_factor, limits.max_log_omega, limits.max_answer_bytes)
        intake = AnswerIntake(service, store, gate, metrics, clock)
        enrolment = EnrolmentHandler(
            store, authority, config.pki.site_days, resolver, liveness, metrics, clock
        )
        federation = FederationHandler(
            service, intake, store, liveness, enrolment, metrics, clock, release_key.fingerprint
        )
        fingerprint = certificate_facts(identity.client_ca_pem).fingerprint
        invitations = Invitations(fingerprint, authority is not None, config.pki.invitation_hours)
        operator = OperatorHandler(service, store, liveness, resolver, invitations, metrics, clock)
        signing = Signing(
            lambda: identity.pair.certificate_pem, lambda: identity.pair.key_pem, identity.client_ca_pem
        )
        drop_folder = config.server.state / "drops"
        shutil.rmtree(drop_folder, ignore_errors=True)  # what a crash left half written
        drops = DropHandler(
            service,
            store,
            intake,
            federation,
            enrolment,
            resolver,
            signing,
            drop_folder,
            limits.max_answer_bytes,
            metrics,
            clock,
        )
        catalogue = BundleCatalogue(store, release_key, clock)
        links = DownloadLinks(store, config.downloads.link_hours, clock)
        release = BundleRelease(service.study, store, release_key, config.release.valid_days, clock)
        releases = ReleaseHandler(release, catalogue, links, self._link_base, metrics)
        purge = StudyPurge(
            service, store, release_key, config.server.address, lambda: upkeep_lock(config), clock
        )
        retention = Retention(config.retention, service, store, purge, clock)
        pace = PaceLimits(limits.upload_seconds, limits.stall_seconds, limits.slowest_kib_per_second * _KIB)
        guard = CallGuard(resolver, limits.calls_per_caller, clock)
        bundles = BundleHandler(catalogue, store, metrics, clock)
        served = serve_table(enrolment, federation, bundles, operator, drops, releases, PurgeHandler(purge))
        self._server = AggregatorServer(
            config.listen,
            identity,
            GuardInterceptor(guard, metrics, StallWatch(limits.stall_seconds)),
            contract_services(served, pace),
            polls=limits.polls,
            with_reflection=config.server.reflection,
        )
        stack.callback(self._server.stop, config.server.stop_seconds)

        def renew() -> None:
            identity.renew(datetime.now(UTC))
            metrics.certificate_ends(identity.ends.timestamp())

        def hourly() -> None:
            renew()
            purge.finish_interrupted()
            retention.run()

        service.load()
        estimates.start(service, self._give_up)
        purge.finish_interrupted()
        renew()
        count_sites(self._store, self.metrics)
        self._clock = StudyClock(service, clock, hourly, self._give_up)
        stack.callback(self._clock.stop)
        stack.callback(service.stop_polls)
        self._clock.start()
        self._downloads = None
        if config.downloads.listen:
            shown = DownloadCatalogue(catalogue, links, resolver, store, metrics, clock)
            self._downloads = HttpsServer(
                config.downloads.listen,
                make_bundle_app(shown, HEADING),
                identity.files,
                identity.client_ca_pem,
            )
            self._downloads.start()
            stack.callback(self._downloads.stop)
        self._server.start()
        self._telemetry = None
        if config.metrics.listen:
            self._telemetry = TelemetryServer(config.metrics.listen, metrics.registry, self.ready)
            self._telemetry.start()
            stack.callback(self._telemetry.stop)
        log.get_logger().info("serving", address=config.server.address, port=self._server.port)

    def _link_base(self) -> str:
        """How clinics reach the downloads; empty while they are off."""
        if self._downloads is None:
            return ""
        host = host_of(self._config.server.address)
        shown = f"[{host}]" if ":" in host else host
        return f"https://{self._config.downloads.address or f'{shown}:{self._downloads.port}'}"

    def _give_up(self) -> None:
        self._failed = True
        self._ended.set()


def serve(config: AggregatorConfig) -> None:
    """Run until SIGTERM or SIGINT. Raises where the aggregator could not start or had to give up."""
    log.configure(config.log.level, service="aggregator")
    aggregator = Aggregator(config)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        aggregator.end()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    with aggregator:
        if not aggregator.wait():
            raise FedmapError(
                "a part of the aggregator has failed, so it stopped",
                hint="look at its log and start it again; the studies go on where they were",
            )
        log.get_logger().info("stopping")
    log.get_logger().info("stopped")
