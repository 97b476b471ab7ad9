"""Rounds that travel as files: what a site without a network is given, and what comes back from it.

The operator carries the files; the site's own signature says who made them. A file that comes in takes
the same way as the call it stands for: same table of who may do what, same intake, same gate. A site that
takes part by files gives no signs of life, and is not counted as silent.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedmap.contract import wire
from fedmap.contract.v1 import values
from fedmap.errors import ConfigError, IntegrityError, LimitError, NotFoundError, RejectedError, StateError
from fedmap.files.durable import DurableWriter, make_folder, read_file
from fedmap.names import check_site_name, shown
from fedmap.study.course.questions import tasks_for
from fedmap.transport.chunks import file_chunks
from fedmap.trust import drop_files
from fedmap.trust.pki import Identity
from fedmap_aggregator.gate.intake import AnswerIntake
from fedmap_aggregator.identity.callers import Caller, IdentityResolver, authorise
from fedmap_aggregator.metrics import AggregatorMetrics
from fedmap_aggregator.rpc.handlers.enrolment import EnrolmentHandler
from fedmap_aggregator.rpc.handlers.federation import FederationHandler
from fedmap_aggregator.store import Store
from fedmap_aggregator.studies.service import StudyService
from fedmap_aggregator.studies.task_messages import task_message

_ROOM = 32 << 20  # bytes of a file beside its tensors


@dataclass(frozen=True)
class Signing:
    """The aggregator's own certificate and key, and the authority that sites' signatures lead to."""

    certificate_pem: Callable[[], bytes]
    key_pem: Callable[[], bytes]
    client_ca_pem: bytes


@dataclass(frozen=True)
class DropHandler:
    """ExportDrop and ImportDrop."""

    service: StudyService
    store: Store
    intake: AnswerIntake
    federation: FederationHandler
    enrolment: EnrolmentHandler
    resolver: IdentityResolver
    signing: Signing
    folder: Path
    max_tensors: int
    metrics: AggregatorMetrics
    clock_ms: Callable[[], int]

    def __post_init__(self) -> None:
        make_folder(self.folder)

    def export(self, caller: Caller, request: values.ExportDropRequest) -> Iterator[bytes]:
        """The file for a site: the offer before the start, else its open task with the prior."""
        drop, tensors = self._content(request.study, request.site)
        with TemporaryDirectory(dir=self.folder) as folder:
            path = Path(folder) / "drop"
            self._write(path, drop, tensors)
            self._note(caller, "drop.export", request.study, request.site)
            self.service.heard_by_file(request.site)
            yield from self.metrics.sending(file_chunks(path))

    def take(self, caller: Caller, chunks: Iterator[bytes | memoryview]) -> values.ImportDropResponse:
        """A file that a site made. What it stands for decides which checks it meets."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(dir=self.folder)))
            path = self._received(folder, chunks)
            file = drop_files.read(path, folder, self.max_tensors)
            site = check_site_name(file.drop.site)
            file.verify(self.signing.client_ca_pem, self._now(), Identity("site", site))
            match file.drop:
                case values.Drop(enrolment=values.DropEnrolment() as enrolment):
                    return self._enrol(caller, site, enrolment, folder)
                case values.Drop(approval=values.DropApproval() as approval):
                    return self._approve(caller, site, file, approval)
                case values.Drop(answer=values.DropAnswer(answer)):
                    return self._answer(caller, site, file, answer)
        raise IntegrityError(
            "the file is none that a site makes", hint="import the file that `fedmap-site round run` wrote"
        )

    def _content(self, name: str, site: str) -> tuple[values.Drop, Path | None]:
        study = self.service.study(name)
        if site not in study.state.members:
            raise NotFoundError(
                f"{shown(site)} is not invited to the study {name}", hint="check the site's name"
            )
        terms = study.terms.to_json()
        if study.state.phase == "approvals":
            return self._drop(site, offer=values.DropOffer(name, terms)), None
        task = tasks_for(study.state, site)
        if task is None:
            raise StateError(
                f"nothing is open for {site} in the study {name}",
                hint="`fedmap-aggregator status` says what the study is waiting for; export again later",
            )
        message = task_message(study, task)
        prior = message.prior_digest
        drop = self._drop(site, task=values.DropTask(wire.write(message), terms))
        return drop, self.store.blobs.existing(prior) if prior else None

    def _drop(self, site: str, **content: Any) -> values.Drop:
        return values.Drop(site=site, made_unix_ms=self.clock_ms(), **content)

    def _write(self, path: Path, drop: values.Drop, tensors: Path | None) -> None:
        try:
            drop_files.write(path, drop, tensors, self.signing.key_pem(), self.signing.certificate_pem())
        except ConfigError as error:
            raise StateError(
                "the aggregator's key cannot sign files",
                hint="with external PKI, give the aggregator an EC P-256 key whose certificate has the URI "
                "SAN fedmap:aggregator",
            ) from error

    def _received(self, folder: Path, chunks: Iterator[bytes | memoryview]) -> Path:
        most, path = self.max_tensors + _ROOM, folder / "received"
        with DurableWriter(folder) as writer:
            for chunk in chunks:
                if writer.size + len(chunk) > most:
                    raise LimitError(
                        f"the file is larger than {most:,} bytes", hint="raise limits.max_answer_mib"
                    )
                writer.write(chunk)
                self.metrics.received(len(chunk))
            writer.commit(path)
        return path

    def _enrol(
        self, caller: Caller, site: str, enrolment: values.DropEnrolment, folder: Path
    ) -> values.ImportDropResponse:
        issued = self.enrolment.enrol(values.EnrolRequest(site, enrolment.token, enrolment.csr_pem))
        path = folder / "reply"
        certificate = values.DropCertificate(issued.certificate_pem, issued.ca_pem)
        self._write(path, self._drop(site, certificate=certificate), None)
        self._note(caller, "drop.import", "", site)
        return values.ImportDropResponse(what="enrolment", site=site, reply=read_file(path))

    def _approve(
        self, caller: Caller, site: str, file: drop_files.DropFile, approval: values.DropApproval
    ) -> values.ImportDropResponse:
        request = values.ApproveRequest(approval.study, approval.terms_digest)
        self.federation.approve(self._sender(file, request), request)
        self._note(caller, "drop.import", approval.study, site)
        self.service.heard_by_file(site)
        return values.ImportDropResponse(what="approval", study=approval.study, site=site)

    def _answer(
        self, caller: Caller, site: str, file: drop_files.DropFile, data: bytes
    ) -> values.ImportDropResponse:
        sender = self._sender(file, values.SubmitAnswerRequest())
        try:
            answer = wire.read(values.Answer, data)
        except RejectedError as error:
            raise IntegrityError(
                "the answer in the file cannot be read", hint="have the site make the file again"
            ) from error
        self._note(caller, "drop.import", answer.study[:64], site)
        begun = self.intake.begin(sender.name, answer, data)
        if not isinstance(begun, values.Receipt):
            with begun as upload:
                if file.tensors_path is not None:
                    for chunk in file_chunks(file.tensors_path):
                        upload.write(chunk)
                upload.finish()
        self.service.heard_by_file(site)
        return values.ImportDropResponse(what="answer", study=answer.study, site=site, task_id=answer.task_id)

    def _sender(self, file: drop_files.DropFile, request: object) -> Caller:
        """The site that signed, if it could make the call that the file stands for."""
        sender = self.resolver.resolve(file.signer_chain_pem, self.clock_ms())
        authorise(wire.rpc_of(type(request)).path, sender)
        return sender

    def _note(self, caller: Caller, action: str, study: str, site: str) -> None:
        with self.store.transaction() as transaction:
            transaction.audit.append(caller.actor, action, study, {"site": site}, self.clock_ms())

    def _now(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.clock_ms() / 1000, datetime.UTC)
