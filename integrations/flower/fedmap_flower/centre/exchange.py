"""One step of a study over Flower's grid: whom to ask, and what came of it.

Every reply passes the aggregator's own gate. A node that is silent, fails, or sends what the gate refuses is
recorded with the reason and left out of this step; the others go on. Whether enough are left, and whether an
earlier update counts instead, is the caller's.
Tensors of accepted answers are files in a scratch folder: the gate reads them as it does in the service.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flwr.app import Message

from fedmap.algorithm.fit.values import Model
from fedmap.contract.v1.values import Answer, Task
from fedmap.errors import FedmapError, IntegrityError, RejectedError
from fedmap.files.digests import sha256_hex
from fedmap.names import check_site_name
from fedmap.scoring.decision_rules import DecisionRule
from fedmap.study.answers import told_rule
from fedmap.study.course.state import OpenTask, TaskKind
from fedmap.study.record import RefusalRecord
from fedmap.study.terms import StudyTerms
from fedmap_aggregator.gate.headers import GateLimits
from fedmap_aggregator.gate.updates import check_answer
from fedmap_flower.records import MESSAGE_TYPES, Order, Reply, order_record, read_reply

SILENT = "unreachable"
"""The code of a node that did not answer in time, or whose app ended without an answer."""


@dataclass(frozen=True)
class Member:
    """A site and the node that speaks for it."""

    site: str
    node: int
    region: str = ""


@dataclass(frozen=True)
class Accepted:
    """An answer that the gate let pass. Abstained: a fit without a weight."""

    member: Member
    answer: Answer
    tensors: Path | None
    norm: float | None = None
    abstained: bool = False


@dataclass(frozen=True)
class Step:
    """What came of one step, by site in sorted order."""

    accepted: Mapping[str, Accepted] = field(default_factory=dict)
    refused: tuple[RefusalRecord, ...] = ()


@dataclass(frozen=True)
class Question:
    """One task, asked of some nodes."""

    kind: TaskKind
    round: int = 0
    prior: bytes = b""
    rule: DecisionRule | None = None

    @property
    def id(self) -> str:
        return f"round-{self.round}" if self.kind == "fit" else self.kind


@dataclass(frozen=True)
class Exchange:
    """Asks under one study's terms, and judges what comes back."""

    terms: StudyTerms
    model: Model
    limits: GateLimits
    scratch: Path

    def messages(self, question: Question, nodes: Iterable[int]) -> list[Message]:
        """One message for each node."""
        task = Task(
            study=self.terms.study,
            id=question.id,
            kind=question.kind,
            round=question.round,
            terms_digest=self.terms.digest,
            prior_digest=sha256_hex(question.prior) if question.prior else "",
            prior_size=len(question.prior),
            attempt=1,
            rule=None if question.rule is None else told_rule(question.rule),
        )
        content = order_record(Order(task, self.terms.to_json(), question.prior))
        kind, group = MESSAGE_TYPES[task.kind], question.id
        return [Message(content, node, kind, group_id=group) for node in nodes]

    def judge(
        self,
        question: Question,
        asked: Mapping[int, Member | None],
        replies: Iterable[Message],
        cohort_norm: float | None = None,
    ) -> Step:
        """What came of a question. A node whose site is not known yet tells it with its answer."""
        found: list[Accepted] = []
        refused: list[RefusalRecord] = []
        silent = dict(asked)
        for message in replies:
            node = message.metadata.src_node_id
            if node not in silent:
                continue  # a second reply, or one of a node that was not asked
            known = silent.pop(node)
            try:
                one = self._accepted(question, node, known, message, cohort_norm)
            except FedmapError as error:
                refused.append(RefusalRecord(_name(known, node), question.id, error.code, error.message))
                continue
            if (failure := one.answer.failure) is not None:
                site = one.member.site or _name(known, node)
                refused.append(RefusalRecord(site, question.id, failure.code, failure.reason))
            else:
                found.append(one)
        for node, known in silent.items():
            refused.append(
                RefusalRecord(_name(known, node), question.id, SILENT, "no answer before the deadline")
            )
        times = Counter(one.member.site for one in found)
        for one in found:
            if times[one.member.site] > 1:  # one of them is not who it says
                site, code = one.member.site, RejectedError.code
                reason = f"{times[site]} nodes answer for this site: give every SuperNode a name of its own"
                refused.append(RefusalRecord(site, question.id, code, reason))
        single = {one.member.site: one for one in found if times[one.member.site] == 1}
        accepted = {site: single[site] for site in sorted(single)}
        return Step(accepted, tuple(sorted(refused, key=lambda one: one.site)))

    def _accepted(
        self,
        question: Question,
        node: int,
        known: Member | None,
        message: Message,
        cohort_norm: float | None,
    ) -> Accepted:
        if message.has_error():
            raise RejectedError(
                f"the node's app ended without an answer (Flower's code {message.error.code})",
                hint="read the log of that SuperNode",
            )
        reply = read_reply(message.content)
        answer = reply.answer
        if answer.site or answer.failure is None:  # a failing node may not know its name
            check_site_name(answer.site)
            if known is not None and answer.site != known.site:
                raise RejectedError("the answer names another site", hint="restart that SuperNode")
        tensors = self._keep(question, reply)
        task = OpenTask(question.id, question.kind, question.round, 0, 0, 1, ())
        checked = check_answer(self.terms, self.model, task, answer, tensors, self.limits, cohort_norm)
        member = known or Member(answer.site, node, reply.region)
        return Accepted(member, answer, tensors, checked.norm, checked.status == "abstained")

    def _keep(self, question: Question, reply: Reply) -> Path | None:
        """The tensors as a file, checked against the answer's digest."""
        if not reply.tensors and not reply.answer.tensors_size:
            return None
        if (
            len(reply.tensors) != reply.answer.tensors_size
            or sha256_hex(reply.tensors) != reply.answer.tensors_digest
        ):
            raise IntegrityError(
                "the tensors are not those of the answer", hint="ask again in the next round"
            )
        path = self.scratch / f"{question.id}-{reply.answer.site}.safetensors"
        path.write_bytes(reply.tensors)
        return path


def _name(known: Member | None, node: int) -> str:
    return f"node {node}" if known is None else known.site
