"""A T1 agent without data: it enrols, approves and answers every task over the agent's own connection.

Statistics, parameters and weights are made up, so that what is measured is the federation and not training.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fedmap.algorithm.pooling.statistics import FeatureStatistics
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.prior.weights import log_weight
from fedmap.contract import wire
from fedmap.contract.v1 import values
from fedmap.files.digests import file_sha256, sha256_hex
from fedmap.study.models import model_of
from fedmap.study.plan.sections import FeatureBlock
from fedmap.study.plan.study_plan import StudyPlan
from fedmap.study.tensors.parameter_files import encode_parameters, encode_statistics, encode_theta
from fedmap.study.terms import StudyTerms
from fedmap.transport.client import Credentials, Route
from fedmap.trust import pki
from fedmap.trust.pki import Identity
from fedmap_aggregator.operator.client import OperatorClient
from fedmap_site.identity.enrolment import read_joining
from fedmap_site.link.connection import Connection

WAIT_SECONDS = 30
ROWS, LOSS = 1000, 0.4  # of a site, per row


@dataclass
class BareAgent:
    """One site's connection with what it answers."""

    site: str
    terms: StudyTerms
    connection: Connection
    folder: Path
    instance: values.AgentInstance = field(init=False)

    def __post_init__(self) -> None:
        self.instance = values.AgentInstance(f"bench-{self.site}", 1)
        self._prepared: dict[str, Path] = {}

    def next_task(self, wait_seconds: int = WAIT_SECONDS) -> values.Task:
        task = self.connection.next_task(self.instance, (), wait_seconds)
        if task is None:
            raise AssertionError(f"no task came for {self.site}")
        return task

    def answer(self, task: values.Task) -> values.Receipt:
        """Send made-up content for a task."""
        tensors = self._tensors_for(task)
        answer = values.Answer(task.study, task.id, task.attempt, self.site, task.terms_digest)
        answer = replace(answer, **self._content(task))
        if tensors is not None:
            digest = tensors.with_suffix(".sha256").read_text()
            answer = replace(answer, tensors_size=tensors.stat().st_size, tensors_digest=digest)
        data = wire.write(answer)
        receipt = self.connection.submit(data, tensors)
        assert receipt.answer_digest == sha256_hex(data)
        return receipt

    def prepare(self, kind: str) -> Path:
        """The tensors of an answer, made once and kept as a file with its digest, as an outbox does."""
        if kind not in self._prepared:
            data = self._tensors(kind)
            path = self.folder / f"{self.site}-{kind}.safetensors"
            path.write_bytes(data)
            path.with_suffix(".sha256").write_text(sha256_hex(data))
            self._prepared[kind] = path
        return self._prepared[kind]

    def change(self, kind: str, value: float) -> None:
        """Another last number: after training, the content is one that the aggregator does not have yet."""
        path = self.prepare(kind)
        with path.open("r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(struct.pack("<f", value))
        path.with_suffix(".sha256").write_text(file_sha256(path))

    def _tensors_for(self, task: values.Task) -> Path | None:
        kinds = {"statistics": "statistics", "initialise": "theta", "fit": "parameters"}
        return self.prepare(kinds[task.kind]) if task.kind in kinds else None

    def _content(self, task: values.Task) -> dict[str, Any]:
        match task.kind:
            case "statistics":
                return {"statistics": values.StatisticsAnswer(ROWS, sha256_hex(b"bench"))}
            case "initialise":
                return {"initial_model": values.InitialModelAnswer()}
            case "fit":
                rule = self.terms.plan.aggregation.weighting
                weight = log_weight(rule, LOSS * ROWS, penalty=0.1, rows=ROWS)
                return {"fit": values.FitAnswer(log_omega=weight, loss=LOSS, epochs=1)}
            case "rule":
                return {"rule": values.RuleAnswer(threshold=0.5, validation_rows=100)}
        return {"evaluation": values.EvaluationAnswer()}

    def _tensors(self, kind: str) -> bytes:
        network = model_of(self.terms.plan).network
        if kind == "statistics":
            mean = torch.tensor(list(_middles(self.terms.plan)), dtype=torch.float64)
            return encode_statistics(FeatureStatistics(ROWS, mean, torch.ones_like(mean)))
        theta = 0.01 * torch.randn(network.spec.size, generator=torch.Generator().manual_seed(len(self.site)))
        if kind == "theta":
            return encode_theta(network, theta)
        return encode_parameters(network, SiteParameters(theta, network.initial_buffers()))


def _middles(plan: StudyPlan) -> Iterator[float]:
    """A plausible mean for every input: the middle of its range."""
    for feature in plan.features:
        low, high = feature.range or (0.0, 0.0)
        middle = (low + high) / 2
        width = feature.columns if isinstance(feature, FeatureBlock) else max(1, len(feature.categories) - 1)
        yield from [math.log1p(middle) if feature.transform == "log1p" else middle] * width


@dataclass(frozen=True)
class Enrolled:
    """A site's own certificate and key, fresh from enrolment."""

    site: str
    credentials: Credentials

    def connect(self, address: str) -> Connection:
        return Connection(Route(address), self.credentials)


def enrol(operator: OperatorClient, joining: Path, address: str, site: str) -> Enrolled:
    """A new T1 site, invited and enrolled over the joining certificate."""
    invitation = operator.invite(site, 1, "bench")
    door = read_joining(joining, invitation.ca_fingerprint)
    key = pki.new_key()
    with Connection(Route(address), Credentials(door.certificate, door.key, door.authority)) as connection:
        csr = pki.make_csr(key, Identity("site", site))
        issued = connection.enrol(site, invitation.token, csr, "bench")
    return Enrolled(site, Credentials(issued.certificate_pem, pki.key_pem(key), issued.ca_pem))
