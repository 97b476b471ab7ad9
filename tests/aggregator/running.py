"""A real aggregator on a free port of this machine, and clients with real certificates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc

from fedmap.contract.v1 import values
from fedmap.process.settings import parse_config
from fedmap.transport.channel_options import client_options
from fedmap.transport.chunks import UploadPart, answer_part, tensors_part
from fedmap.transport.client import ContractClient, Credentials, Route
from fedmap.trust.pki import CertificateAuthority, Identity, key_pem, make_csr, new_key
from fedmap_aggregator.config import AggregatorConfig
from fedmap_aggregator.identity.initialise import initialise, load_authority, pki_paths
from fedmap_aggregator.identity.profile import read_profile
from fedmap_aggregator.operator.client import OperatorClient
from fedmap_aggregator.wiring import Aggregator, clock_ms
from tests.aggregator import small_study as made
from tests.aggregator.centre import parts_of, scripted

SECONDS = 60.0


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


class Client(ContractClient):
    """One caller's channel."""

    def __init__(self, address: str, credentials: Credentials, name: str) -> None:
        super().__init__(Route(address), credentials)
        self.credentials = credentials
        self.name = name

    def hello(self) -> values.HelloResponse:
        return self.ask(values.HelloRequest(1, 1, "1"), values.HelloResponse)

    def next_task(self, wait_seconds: int = 0, start: int = 1, instance: str = "") -> values.Task | None:
        who = values.AgentInstance(instance or self.name, start)
        request = values.NextTaskRequest(who, (), wait_seconds)
        return self.ask(request, values.NextTaskResponse, SECONDS).task

    def approve(self, study: str, terms_digest: str = "") -> None:
        self.ask(values.ApproveRequest(study, terms_digest), values.ApproveResponse)

    def submit(self, answer: values.Answer, tensors: bytes = b"") -> values.Receipt:
        parts = map(message_of, parts_of(answer, tensors))
        receipt = self.upload(values.SubmitAnswerRequest, parts, values.SubmitAnswerResponse).receipt
        assert receipt is not None
        return receipt

    def asked(self, study: made.Small) -> values.Task:
        """The study's task that is open for it."""
        task = self.next_task(wait_seconds=30)
        assert task is not None
        assert task.study == study.terms.study
        return task

    def ready(self, study: made.Small) -> tuple[values.Answer, bytes]:
        """A sound answer to what it is asked."""
        return scripted(study, self.asked(study), self.name)

    def work(self, study: made.Small) -> values.Receipt:
        return self.submit(*self.ready(study))


def message_of(part: UploadPart) -> bytes:
    """A part of an upload as it goes over the network."""
    return answer_part(part.data) if part.chunk is None else tensors_part(bytes(part.chunk))


class Running:
    """The aggregator with its authority, and callers made at will."""

    def __init__(
        self, config: AggregatorConfig, aggregator: Aggregator, authority: CertificateAuthority, clock: Clock
    ) -> None:
        self.config = config
        self.aggregator = aggregator
        self.authority = authority
        self.clock = clock
        self._stack = ExitStack()

    def close(self) -> None:
        self._stack.close()

    def client(self, credentials: Credentials, name: str = "") -> Client:
        return self._stack.enter_context(Client(self.address, credentials, name))

    def channel(self, credentials: Credentials) -> grpc.Channel:
        """For calls that are not of the contract."""
        secure = grpc.ssl_channel_credentials(credentials.authority, credentials.key, credentials.certificate)
        return self._stack.enter_context(grpc.secure_channel(self.address, secure, client_options()))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.aggregator.port}"

    def certified(
        self, identity: Identity, authority: CertificateAuthority | None = None, days: float = 1
    ) -> Credentials:
        """Any certificate that an authority could give, ours unless another is given."""
        key, issuer = new_key(), authority or self.authority
        now = datetime.now(UTC) - timedelta(days=2 if days < 0 else 0)
        certificate = issuer.issue(key.public_key(), identity, days if days > 0 else 1, now)
        return Credentials(certificate, key_pem(key), self.authority.certificate_pem)

    def operator(self) -> OperatorClient:
        profile = read_profile(pki_paths(self.config).operator)
        return self._stack.enter_context(OperatorClient(replace(profile, address=self.address)))

    def joining(self) -> Client:
        pem = pki_paths(self.config).joining.read_bytes()
        ca, certificate, key = (b"-----BEGIN" + part for part in pem.split(b"-----BEGIN")[1:])
        return self.client(Credentials(certificate, key, ca), "joining")

    def invite(self, site: str, tier: int = 1) -> str:
        return self.operator().invite(site, tier, "").token

    def enrol(self, site: str, token: str, csr: bytes) -> values.EnrolResponse:
        return self.joining().ask(values.EnrolRequest(site, token, csr), values.EnrolResponse)

    def site(self, name: str, tier: int = 1) -> Client:
        """Invited and enrolled over the network."""
        key = new_key()
        response = self.enrol(name, self.invite(name, tier), make_csr(key, Identity("site", name)))
        credentials = Credentials(response.certificate_pem, key_pem(key), response.ca_pem)
        return self.client(credentials, name)

    def study(self, *sites: Client, name: str, rounds: int = 1, start: bool = True) -> made.Small:
        """Created by the operator, approved by these sites and, unless told otherwise, started."""
        text = made.BINARY.replace('"small-binary"', f'"{name}"')
        created = self.operator().create_study(text, rounds, 5, [site.name for site in sites])
        if start:
            for site in sites:
                site.approve(name, created.terms_digest)
            self.operator().control(name, "start")
        small = made.small(text)
        return made.Small(type(small.terms)(small.terms.plan, rounds, 5))

    def status(self, name: str) -> values.StudyStatus:
        (status,) = self.operator().status(name).studies
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
