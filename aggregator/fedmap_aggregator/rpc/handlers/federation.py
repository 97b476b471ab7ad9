"""What a T1 site may ask: studies, approval, tasks, priors, and handing in answers.

A study that a site is not invited to does not exist for it. Values in, values out; what happens to a
study is the service's, what an answer must be is the intake's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version

from fedmap.contract.v1 import values
from fedmap.errors import ConflictError, IncompatibleError, NotFoundError, RejectedError, StateError
from fedmap.names import shown
from fedmap.study.course.events import Approved, Left
from fedmap.study.course.questions import is_open
from fedmap.transport.channel_options import OLDEST_PROTOCOL, PROTOCOL, agreed_protocol
from fedmap.transport.chunks import UploadPart, file_chunks
from fedmap_aggregator.gate.intake import AnswerIntake
from fedmap_aggregator.identity.callers import Caller
from fedmap_aggregator.metrics import AggregatorMetrics
from fedmap_aggregator.rpc.handlers.enrolment import EnrolmentHandler
from fedmap_aggregator.store import Store
from fedmap_aggregator.studies.liveness import Instance, Liveness, Progress
from fedmap_aggregator.studies.polls import Poll
from fedmap_aggregator.studies.service import Note, Study, StudyService
from fedmap_aggregator.studies.task_messages import task_message

LONGEST_WAIT = 60.0  # seconds
SOFTWARE = version("fedmap")


@dataclass(frozen=True)
class FederationHandler:
    """FederationService."""

    service: StudyService
    intake: AnswerIntake
    store: Store
    liveness: Liveness
    enrolment: EnrolmentHandler
    metrics: AggregatorMetrics
    clock_ms: Callable[[], int]
    release_key_fingerprint: str

    def hello(self, caller: Caller, request: values.HelloRequest) -> values.HelloResponse:
        agreed = agreed_protocol(request.oldest_protocol, request.newest_protocol)
        if agreed is None:
            raise IncompatibleError(
                f"the agent speaks protocol {request.oldest_protocol} to {request.newest_protocol}, "
                f"the aggregator {OLDEST_PROTOCOL} to {PROTOCOL}",
                hint="update the older side; an update keeps certificates and state",
            )
        self.liveness.version(caller.name, request.software_version)
        self.enrolment.remember_version(caller, request.software_version)
        return values.HelloResponse(
            protocol=agreed,
            software_version=SOFTWARE,
            time_unix_ms=self.clock_ms(),
            tier=caller.tier,
            release_key_fingerprint=self.release_key_fingerprint,
        )

    def list_studies(self, caller: Caller) -> values.ListStudiesResponse:
        return values.ListStudiesResponse(
            tuple(
                _offered(study, caller.name)
                for study in self.service.studies()
                if caller.name in study.state.members
            )
        )

    def approve(self, caller: Caller, request: values.ApproveRequest) -> values.ApproveResponse:
        study = self._study(caller, request.study)
        if request.terms_digest != study.terms.digest:
            raise ConflictError(
                f"the digest is not that of the terms of {study.state.study}",
                hint="fetch the study's terms again, read them, and approve the digest of what you have read",
            )
        note = Note(caller.actor, "study.approve", study.state.study, {"terms_digest": request.terms_digest})
        self.service.apply(study.state.study, Approved(self.clock_ms(), caller.name), note)
        return values.ApproveResponse()

    def leave(self, caller: Caller, request: values.LeaveRequest) -> values.LeaveResponse:
        study = self._study(caller, request.study)
        if study.state.members[caller.name].membership not in ("left", "excluded"):
            note = Note(caller.actor, "study.leave", study.state.study)
            event = Left(self.clock_ms(), caller.name, "left by its own wish")
            self.service.apply(study.state.study, event, note)
        return values.LeaveResponse()

    def next_task(
        self, caller: Caller, request: values.NextTaskRequest, poll: Poll
    ) -> values.NextTaskResponse:
        """Waits; `poll` is how the wait is ended from outside."""
        self.service.heard(caller.name, _instance(request.instance))
        in_hand = frozenset((task.study, task.task_id, task.attempt) for task in request.in_hand)
        wait = min(float(request.wait_seconds), LONGEST_WAIT)
        found = self.service.next_task(caller.name, in_hand, wait, poll)
        if found is None:
            return values.NextTaskResponse()
        return values.NextTaskResponse(task_message(*found))

    def fetch_prior(self, caller: Caller, request: values.FetchPriorRequest) -> Iterator[bytes]:
        """The chunks of a prior; the server makes messages of them."""
        study = self._study(caller, request.study)
        if study.state.members[caller.name].membership != "approved":
            raise StateError(
                f"{caller.name} takes no part in the study {study.state.study}",
                hint="only sites that approved the study and have not left it fetch priors",
            )
        self._check_prior(study, request.digest)
        path = self.store.blobs.existing(request.digest)
        self.service.heard(caller.name, None)
        return self.metrics.sending(file_chunks(path, request.offset))

    def submit(self, caller: Caller, parts: Iterator[UploadPart]) -> values.SubmitAnswerResponse:
        """The message first, then the tensors it names."""
        first = next(parts, None)
        if first is None or first.answer is None:
            raise RejectedError(
                "an upload begins with the answer, and this one does not", hint="update the site agent"
            )
        self.service.heard(caller.name, None)
        begun = self.intake.begin(caller.name, first.answer, first.data)
        if isinstance(begun, values.Receipt):
            return values.SubmitAnswerResponse(begun)
        with begun as upload:
            for part in parts:
                if part.chunk is None:
                    raise RejectedError("an upload holds one answer only", hint="update the site agent")
                upload.write(part.chunk)
            return values.SubmitAnswerResponse(upload.finish())

    def heartbeat(self, caller: Caller, request: values.HeartbeatRequest) -> values.HeartbeatResponse:
        self.service.heard(caller.name, _instance(request.instance))
        progress = Progress(request.study, request.task_id, request.stage, request.progress)
        self.liveness.progress(caller.name, progress)
        if not request.study:
            return values.HeartbeatResponse()
        state = self._study(caller, request.study).state
        return values.HeartbeatResponse(is_open(state, caller.name, request.task_id))

    def _study(self, caller: Caller, name: str) -> Study:
        """The study, if this site is invited to it; otherwise there is none of that name."""
        for study in self.service.studies():
            if study.state.study == name and caller.name in study.state.members:
                return study
        raise NotFoundError(
            f"{caller.name} is invited to no study called {shown(name)}",
            hint="`fedmap-site studies` lists what this site is invited to; ask the operator for the others",
        )

    def _check_prior(self, study: Study, digest: str) -> None:
        if digest and digest == study.state.prior_digest:
            return
        with self.store.reading() as transaction:
            known = {row.prior_digest for row in transaction.results.list(study.state.study)}
        if not digest or digest not in known:
            raise NotFoundError(
                f"{study.state.study} has no such prior", hint="ask for the next task; it names the prior"
            )


def _offered(study: Study, site: str) -> values.OfferedStudy:
    return values.OfferedStudy(
        study=study.state.study,
        terms_json=study.terms.to_json(),
        terms_digest=study.terms.digest,
        phase=study.state.phase,
        membership=study.state.members[site].membership,
        round=study.state.round,
    )


def _instance(said: values.AgentInstance | None) -> Instance:
    return Instance(said.id, said.start) if said is not None else Instance("", 0)
