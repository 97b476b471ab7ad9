"""A real aggregator on a free port of this machine, and clients with real certificates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import grpc

from fedmap.contract.v1 import enrolment_pb2, federation_pb2, operator_pb2
from fedmap.contract.v1.bundles_pb2_grpc import BundleServiceStub
from fedmap.contract.v1.enrolment_pb2_grpc import EnrolmentServiceStub
from fedmap.contract.v1.federation_pb2_grpc import FederationServiceStub
from fedmap.contract.v1.operator_pb2_grpc import OperatorServiceStub
from fedmap.process.settings import parse_config
from fedmap.transport.channel_options import client_options
from fedmap.trust.pki import CertificateAuthority, Identity, key_pem, make_csr, new_key
from fedmap_aggregator.config import AggregatorConfig
from fedmap_aggregator.identity.initialise import initialise, load_authority, pki_paths
from fedmap_aggregator.identity.profile import read_profile
from fedmap_aggregator.wiring import Aggregator, clock_ms
from tests.aggregator import small_study as made
from tests.aggregator.centre import parts_of, scripted

SECONDS = 60.0
_Message = TypeVar("_Message")


def config_in(folder: Path, extra: str = "", server: str = "") -> AggregatorConfig:
    text = (
        '[server]\naddress = "localhost:8443"\nlisten = "127.0.0.1:0"\nstate = "state"\nstop_seconds = 5.0\n'
        f"{server}\n{extra}"
    )
    return parse_config(text, "test", folder, AggregatorConfig)


class Clock:
    """The real time, and as much more as a test wants."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def __call__(self) -> int:
        return clock_ms() + self.ahead_ms

    @contextmanager
    def ahead(self, days: float) -> Iterator[None]:
        self.ahead_ms = int(days * 86_400_000)
        try:
            yield
        finally:
            self.ahead_ms = 0


@dataclass(frozen=True)
class Credentials:
    """What a client shows, and whom it trusts."""

    certificate: bytes
    key: bytes = field(repr=False)
    ca: bytes


@dataclass(frozen=True)
class Client:
    """One caller's channel with the four services."""

    channel: grpc.Channel
    name: str
    credentials: Credentials

    @property
    def enrolment(self) -> EnrolmentServiceStub:
        return EnrolmentServiceStub(self.channel)

    @property
    def federation(self) -> FederationServiceStub:
        return FederationServiceStub(self.channel)

    @property
    def operator(self) -> OperatorServiceStub:
        return OperatorServiceStub(self.channel)

    @property
    def bundles(self) -> BundleServiceStub:
        return BundleServiceStub(self.channel)

    def hello(self) -> federation_pb2.HelloResponse:
        request = federation_pb2.HelloRequest(oldest_protocol=1, newest_protocol=1, software_version="1")
        return self.federation.Hello(request, timeout=SECONDS)

    def next_task(
        self, wait_seconds: int = 0, start: int = 1, instance: str = ""
    ) -> federation_pb2.Task | None:
        request = federation_pb2.NextTaskRequest(
            instance=federation_pb2.AgentInstance(id=instance or self.name, start=start),
            wait_seconds=wait_seconds,
        )
        response = self.federation.NextTask(request, timeout=SECONDS)
        return response.task if response.HasField("task") else None

    def submit(self, answer: federation_pb2.Answer, tensors: bytes = b"") -> federation_pb2.Receipt:
        return self.federation.SubmitAnswer(messages_of(answer, tensors), timeout=SECONDS).receipt

    def work(self, study: made.Small) -> federation_pb2.Receipt:
        task = self.next_task(wait_seconds=30)
        assert task is not None
        return self.submit(*scripted(study, task, self.name))


def messages_of(
    answer: federation_pb2.Answer, tensors: bytes
) -> Iterator[federation_pb2.SubmitAnswerRequest]:
    """An upload as it goes over the network."""
    for part in parts_of(answer, tensors):
        if part.chunk is None:
            yield federation_pb2.SubmitAnswerRequest(answer=part.answer)
        else:
            yield federation_pb2.SubmitAnswerRequest(chunk=bytes(part.chunk))


class Running:
    """The aggregator with its authority, and callers made at will."""

    def __init__(
        self, config: AggregatorConfig, aggregator: Aggregator, authority: CertificateAuthority, clock: Clock
    ) -> None:
        self.config = config
        self.aggregator = aggregator
        self.authority = authority
        self.clock = clock
        self._channels: list[grpc.Channel] = []

    def close(self) -> None:
        for channel in self._channels:
            channel.close()

    def client(self, credentials: Credentials, name: str = "") -> Client:
        channel = grpc.secure_channel(
            f"127.0.0.1:{self.aggregator.port}",
            grpc.ssl_channel_credentials(credentials.ca, credentials.key, credentials.certificate),
            # A pool of its own, so that every client makes its own handshake.
            options=[*client_options(), ("grpc.use_local_subchannel_pool", 1)],
        )
        self._channels.append(channel)
        return Client(channel, name, credentials)

    def certified(
        self, identity: Identity, authority: CertificateAuthority | None = None, days: float = 1
    ) -> Credentials:
        """Any certificate that an authority could give, ours unless another is given."""
        key, issuer = new_key(), authority or self.authority
        now = datetime.now(UTC) - timedelta(days=2 if days < 0 else 0)
        certificate = issuer.issue(key.public_key(), identity, days if days > 0 else 1, now)
        return Credentials(certificate, key_pem(key), self.authority.certificate_pem)

    def operator(self) -> Client:
        profile = read_profile(pki_paths(self.config).operator)
        return self.client(
            Credentials(profile.certificate.encode(), profile.key.encode(), profile.ca.encode()), profile.name
        )

    def joining(self) -> Client:
        pem = pki_paths(self.config).joining.read_bytes()
        ca, certificate, key = (b"-----BEGIN" + part for part in pem.split(b"-----BEGIN")[1:])
        return self.client(Credentials(certificate, key, ca), "joining")

    def invite(self, site: str, tier: int = 1) -> str:
        request = operator_pb2.InviteRequest(site=site, tier=tier)
        return self.operator().operator.Invite(request, timeout=SECONDS).token

    def enrol(self, site: str, token: str, csr: bytes) -> enrolment_pb2.EnrolResponse:
        request = enrolment_pb2.EnrolRequest(site=site, token=token, csr_pem=csr)
        return self.joining().enrolment.Enrol(request, timeout=SECONDS)

    def site(self, name: str, tier: int = 1) -> Client:
        """Invited and enrolled over the network."""
        key = new_key()
        response = self.enrol(name, self.invite(name, tier), make_csr(key, Identity("site", name)))
        credentials = Credentials(response.certificate_pem, key_pem(key), response.ca_pem)
        return self.client(credentials, name)

    def study(self, *sites: Client, name: str, rounds: int = 1, start: bool = True) -> made.Small:
        """Created by the operator, approved by these sites and, unless told otherwise, started."""
        operator = self.operator().operator
        text = made.BINARY.replace('"small-binary"', f'"{name}"')
        created = operator.CreateStudy(
            operator_pb2.CreateStudyRequest(
                plan_toml=text, rounds=rounds, seed=5, sites=[site.name for site in sites]
            ),
            timeout=SECONDS,
        )
        if start:
            for site in sites:
                request = federation_pb2.ApproveRequest(study=name, terms_digest=created.terms_digest)
                site.federation.Approve(request, timeout=SECONDS)
            self.control(name, operator_pb2.STUDY_ACTION_START)
        small = made.small(text)
        return made.Small(type(small.terms)(small.terms.plan, rounds, 5))

    def control(self, name: str, action: operator_pb2.StudyAction.ValueType) -> str:
        request = operator_pb2.ControlStudyRequest(study=name, action=action)
        return self.operator().operator.ControlStudy(request, timeout=SECONDS).phase

    def status(self, name: str) -> operator_pb2.StudyStatus:
        request = operator_pb2.GetStatusRequest(study=name)
        (status,) = self.operator().operator.GetStatus(request, timeout=SECONDS).studies
        return status


@contextmanager
def running(folder: Path, extra: str = "", server: str = "") -> Iterator[Running]:
    config = config_in(folder, extra, server)
    initialise(config, "kim", datetime.now(UTC))
    authority = load_authority(config)
    assert authority is not None
    clock = Clock()
    centre = None
    try:
        with Aggregator(config, clock) as aggregator:
            centre = Running(config, aggregator, authority, clock)
            yield centre
    finally:
        if centre is not None:
            centre.close()
