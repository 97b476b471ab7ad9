"""An aggregator without gRPC, with a clock of the test's own, and sites that answer by script.

Everything is real but the clock and, where a test wants it, the moment at which a computation ends.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedmap.contract import wire
from fedmap.contract.v1 import values
from fedmap.errors import FedmapError
from fedmap.files.durable import FolderLock
from fedmap.study.course.state import OpenTask
from fedmap.transport.chunks import UploadPart
from fedmap.trust.pki import CertificateAuthority, Identity, certificate_facts, key_pem, make_csr, new_key
from fedmap_aggregator.estimation.process import Request, Result, estimate
from fedmap_aggregator.estimation.queue import EstimationQueue
from fedmap_aggregator.gate.headers import GateLimits
from fedmap_aggregator.gate.intake import AnswerIntake
from fedmap_aggregator.identity.callers import Caller, IdentityResolver
from fedmap_aggregator.identity.release_key import make_release_key, read_release_key
from fedmap_aggregator.metrics import AggregatorMetrics
from fedmap_aggregator.release.catalogue import BundleCatalogue
from fedmap_aggregator.release.downloads import DownloadCatalogue
from fedmap_aggregator.release.links import DownloadLinks
from fedmap_aggregator.release.signing import BundleRelease
from fedmap_aggregator.rpc.handlers.bundles import BundleHandler, ReleaseHandler
from fedmap_aggregator.rpc.handlers.drop import DropHandler, Signing
from fedmap_aggregator.rpc.handlers.enrolment import EnrolmentHandler
from fedmap_aggregator.rpc.handlers.federation import FederationHandler
from fedmap_aggregator.rpc.handlers.operator import Invitations, OperatorHandler
from fedmap_aggregator.rpc.handlers.purge import PurgeHandler
from fedmap_aggregator.store import BlobStore, Store
from fedmap_aggregator.studies.file_sites import FileSites
from fedmap_aggregator.studies.liveness import Liveness
from fedmap_aggregator.studies.polls import Poll
from fedmap_aggregator.studies.service import StudyService
from fedmap_aggregator.study_metrics import StudyMetrics
from fedmap_aggregator.upkeep.purge import StudyPurge
from fedmap_aggregator.wiring import StoreRegister
from tests.aggregator import small_study as made

START = 1_700_000_000_000  # unix ms
SILENT_AFTER = 120_000
OPERATOR = Caller("operator", "kim", 0, "01")


class Clock:
    """Stands still unless the test moves it."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now

    @property
    def moment(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.now / 1000, datetime.UTC)


class Estimator:
    """The queue of computations without its thread, and its process in this one.

    Computes at once, or when the test says so.
    """

    service: StudyService

    def __init__(self, store: Store, metrics: AggregatorMetrics, clock: Clock) -> None:
        self.blobs = store.blobs
        self.queue = EstimationQueue(store, self, metrics, clock)
        self.at_once = True
        self.failures: list[FedmapError] = []  # the next results are these
        self.meanwhile: Callable[[], object] = lambda: None  # happens during a computation
        self.waiting: list[str] = []
        self.asked: list[Request] = []

    def owes(self, study: str) -> None:
        self.waiting.append(study)
        if self.at_once:
            self.compute()

    def compute(self) -> None:
        """Finish what waits."""
        while self.waiting:
            self.queue.compute(self.service, self.waiting.pop(0))

    def ask(self, request: Request) -> Result:
        self.asked.append(request)
        self.meanwhile()
        if self.failures:
            raise self.failures.pop(0)
        return estimate(request, self.blobs)

    def start(self) -> None:
        """It is here."""

    def close(self) -> None:
        """Nothing to close."""


@dataclass
class Centre:
    """All handlers over one store."""

    folder: Path
    clock: Clock = field(default_factory=Clock)
    issues_certificates: bool = True
    link_base: str = "https://localhost:8444"

    def __post_init__(self) -> None:
        self.authority, _ = CertificateAuthority.create("test", 3650, self.clock.moment)
        server = new_key()
        self.server_key = key_pem(server)
        self.server_certificate = self.authority.issue(
            server.public_key(), Identity("aggregator"), 397, self.clock.moment, ("localhost",)
        )
        self.open()

    def open(self) -> None:
        """Also what a restart does."""
        self.store = Store(f"sqlite:///{self.folder / 'fedmap.db'}", BlobStore(self.folder / "blobs"))
        self.store.prepare()
        self.metrics = AggregatorMetrics()
        self.estimator = Estimator(self.store, self.metrics, self.clock)
        self.liveness = Liveness(SILENT_AFTER, self.clock())
        self.resolver = IdentityResolver(StoreRegister(self.store))
        key = self.folder / "release" / "key.pem"
        self.release_key = read_release_key(key) if key.exists() else make_release_key(key)
        self.file_sites = FileSites(self.folder / "file_sites.json")
        self.service = StudyService(
            self.store,
            self.estimator.owes,
            self.liveness,
            self.file_sites,
            self.metrics,
            self.clock,
            16,
        )
        self.estimator.service = self.service
        self.metrics.registry.register(
            StudyMetrics(self.service.studies, self.liveness.presence, self.metrics.progress, self.clock)
        )
        limits = GateLimits(max_tensor_bytes=1 << 20)
        self.intake = AnswerIntake(self.service, self.store, limits, self.metrics, self.clock)
        authority = self.authority if self.issues_certificates else None
        self.enrolment = EnrolmentHandler(
            self.store, authority, 90, self.resolver, self.liveness, self.metrics, self.clock
        )
        self.federation = FederationHandler(
            self.service,
            self.intake,
            self.store,
            self.liveness,
            self.enrolment,
            self.metrics,
            self.clock,
            self.release_key.fingerprint,
        )
        invitations = Invitations(self.authority.fingerprint, self.issues_certificates, 72)
        self.operator = OperatorHandler(
            self.service,
            self.store,
            self.liveness,
            self.resolver,
            invitations,
            self.metrics,
            self.clock,
        )
        signing = Signing(
            lambda: self.server_certificate, lambda: self.server_key, self.authority.certificate_pem
        )
        self.drops = DropHandler(
            self.service,
            self.store,
            self.intake,
            self.federation,
            self.enrolment,
            self.resolver,
            signing,
            self.folder / "drops",
            1 << 20,
            self.metrics,
            self.clock,
        )
        self.open_bundles()
        lock = self.folder / "upkeep.lock"
        self.purge = StudyPurge(
            self.service, self.store, self.release_key, "localhost:8443", lambda: FolderLock(lock), self.clock
        )
        self.purges = PurgeHandler(self.purge)
        self.service.load()

    def open_bundles(self) -> None:
        self.catalogue = BundleCatalogue(self.store, self.release_key, self.clock)
        self.links = DownloadLinks(self.store, 72, self.clock)
        release = BundleRelease(self.service.study, self.store, self.release_key, 365, self.clock)
        self.bundles = BundleHandler(self.catalogue, self.store, self.metrics, self.clock)
        self.releases = ReleaseHandler(
            release, self.catalogue, self.links, lambda: self.link_base, self.metrics
        )
        self.downloads = DownloadCatalogue(
            self.catalogue, self.links, self.resolver, self.store, self.metrics, self.clock
        )

    def restart(self) -> None:
        self.store.close()
        self.open()

    def invite(self, site: str, tier: int = 1) -> values.InviteResponse:
        return self.operator.invite(OPERATOR, values.InviteRequest(site, tier, "east"))

    def enrolled(self, site: str, tier: int = 1) -> Site:
        """Invited and enrolled, as a site would do it."""
        key = new_key()
        token = self.invite(site, tier).token
        response = self.enrolment.enrol(
            values.EnrolRequest(site, token, make_csr(key, Identity("site", site)), "1")
        )
        serial = certificate_facts(response.certificate_pem).serial
        caller = Caller("site", site, tier, serial)
        return Site(self, caller, key_pem(key), response.certificate_pem)

    def create(self, *sites: str, name: str = "small-binary", rounds: int = 2, extra: str = "") -> made.Small:
        """A study of these sites, up for approval."""
        text = made.BINARY.replace('"small-binary"', f'"{name}"') + extra
        response = self.operator.create_study(OPERATOR, values.CreateStudyRequest(text, rounds, 5, sites))
        return made.Small(self.service.study(response.study).terms)

    def control(self, study: made.Small, action: values.StudyAction) -> str:
        request = values.ControlStudyRequest(study=study.terms.study, action=action)
        return self.operator.control_study(OPERATOR, request).phase

    def started(
        self, *sites: Site, name: str = "small-binary", rounds: int = 2, extra: str = ""
    ) -> made.Small:
        """A study that all these sites approved, started."""
        study = self.create(*(site.name for site in sites), name=name, rounds=rounds, extra=extra)
        for site in sites:
            site.approve(study)
        self.control(study, "start")
        return study

    def status(self, study: made.Small) -> values.StudyStatus:
        request = values.GetStatusRequest(study=study.terms.study)
        (status,) = self.operator.get_status(request).studies
        return status

    def task(self, study: made.Small) -> OpenTask:
        task = self.service.study(study.terms.study).state.task
        assert task is not None
        return task


@dataclass(frozen=True)
class Site:
    """One site that answers what it is asked, with made-up but sound content."""

    centre: Centre
    caller: Caller
    key: bytes = field(repr=False)
    certificate: bytes = field(repr=False)

    @property
    def name(self) -> str:
        return self.caller.name

    def approve(self, study: made.Small) -> None:
        request = values.ApproveRequest(study=study.terms.study, terms_digest=study.terms.digest)
        self.centre.federation.approve(self.caller, request)

    def next_task(self, wait_seconds: int = 0) -> values.Task | None:
        request = values.NextTaskRequest(values.AgentInstance(self.name, 1), (), wait_seconds)
        return self.centre.federation.next_task(self.caller, request, Poll()).task

    def submit(self, answer: values.Answer, tensors: bytes = b"") -> values.Receipt:
        receipt = self.centre.federation.submit(self.caller, parts_of(answer, tensors)).receipt
        assert receipt is not None
        return receipt

    def asked(self) -> values.Task:
        """The task that is open for it."""
        task = self.next_task()
        assert task is not None
        return task

    def ready(self, study: made.Small) -> tuple[values.Answer, bytes]:
        """A sound answer to what it is asked."""
        return scripted(study, self.asked(), self.name)

    def work(self, study: made.Small) -> values.Receipt:
        """Fetch the open task and answer it."""
        return self.submit(*self.ready(study))


def run_until(study: made.Small, phase: str, *sites: Site) -> None:
    """The sites do what they are asked, in turn, and stop the moment the study reaches the phase."""
    centre = sites[0].centre
    for _ in range(100):
        for site in sites:
            if centre.service.study(study.terms.study).state.phase == phase:
                return
            if site.next_task() is not None:
                site.work(study)
    raise AssertionError(f"the study never came to {phase}")


def scripted(study: made.Small, task: values.Task, site: str) -> tuple[values.Answer, bytes]:
    """A sound answer to any task of the small binary study; the same one each time."""
    seed = int.from_bytes(hashlib.sha256(f"{site} {task.id}".encode()).digest()[:4], "big")
    tensors, content = b"", dict[str, Any]()
    match task.kind:
        case "statistics":
            tensors = made.statistics_bytes(rows=40)
            content = {"statistics": values.StatisticsAnswer(40, made.LAYOUT)}
        case "initialise":
            tensors = made.theta_bytes(study, seed)
            content = {"initial_model": values.InitialModelAnswer()}
        case "fit":
            tensors = made.fit_bytes(study, seed)
            scores = (values.Score("personal", "auroc", 0.8), values.Score("global", "auroc", 0.7))
            content = {"fit": values.FitAnswer(-0.5, 0.4, 0.5, 1, scores)}
        case "rule":
            content = {"rule": values.RuleAnswer(0.4, 10)}
        case "evaluate":
            few = values.Score("global", "auroc", note="too few events")
            scores = (values.Score("personal", "auroc", 0.81), few)
            content = {"evaluation": values.EvaluationAnswer(scores)}
        case _:
            raise AssertionError(f"an unknown kind of task: {task.kind}")
    answer = values.Answer(
        study=task.study,
        task_id=task.id,
        attempt=task.attempt,
        site=site,
        terms_digest=task.terms_digest,
        tensors_size=len(tensors),
        tensors_digest=hashlib.sha256(tensors).hexdigest() if tensors else "",
        **content,
    )
    return answer, tensors


def failed(task: values.Task, site: str, code: str, reason: str) -> values.Answer:
    """What a site sends that could not do its task."""
    failure = values.FailureAnswer(code, reason)
    return values.Answer(task.study, task.id, task.attempt, site, task.terms_digest, failure=failure)


def parts_of(answer: values.Answer, tensors: bytes, piece: int = 4096) -> Iterator[UploadPart]:
    yield UploadPart(answer, wire.write(answer))
    for start in range(0, len(tensors), piece):
        yield UploadPart(chunk=memoryview(tensors)[start : start + piece])


@contextmanager
def centre_in(folder: Path, *, issues_certificates: bool = True) -> Iterator[Centre]:
    centre = Centre(folder, issues_certificates=issues_certificates)
    try:
        yield centre
    finally:
        centre.store.close()
