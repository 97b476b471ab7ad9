"""The estimation process: both ends of its pipes, and what is computed in it.

    python -m fedmap_aggregator.estimation.process BLOBS PARENT

It computes what takes long or much memory, so that the server goes on answering: pooled scaler, first prior,
next prior, pooled rule and reference. Requests and results are lines of JSON in which floats keep every bit;
tensors are blobs, named by their digest. The process knows no study's state, and ends with its parent. A
request that cannot be met is a reply; a defect ends the process, and the next request starts another.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import torch
from pydantic import TypeAdapter

from fedmap.algorithm.pooling.statistics import FeatureStatistics, Scaler
from fedmap.contract.v1.values import Answer, FitAnswer, GlobalRule, RuleAnswer, StatisticsAnswer
from fedmap.errors import FedmapError, ModelError, NotFoundError, StorageError, TrainingError
from fedmap.files.tensors import Expected, decode_tensors, encode_tensors
from fedmap.process import log
from fedmap.scoring.decision_rules import RuleTerms
from fedmap.shift.told.terms import ReferenceTerms
from fedmap.study.answers import content_as, terms_of, told_rule
from fedmap.study.centre_step import CentreStep
from fedmap.study.course.state import TaskKind
from fedmap.study.record import PriorMade
from fedmap.study.tensors.parameter_files import (
    PriorFile,
    decode_prior,
    decode_statistics,
    decode_theta,
    encode_prior,
)
from fedmap.study.terms import parse_terms
from fedmap_aggregator.estimation.update_reader import UpdateReader
from fedmap_aggregator.store.blobs import BlobStore

# -P: never from the folder it is started in, which may be a checkout of another version.
_COMMAND = (sys.executable, "-P", "-m", "fedmap_aggregator.estimation.process")
_LONGEST_SECONDS = 7200.0
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_NICE = 10  # the server comes first
_PR_SET_PDEATHSIG = 1
_ERRORS: Mapping[str, type[FedmapError]] = {
    error.code: error for error in (ModelError, TrainingError, StorageError, NotFoundError)
}


@dataclass(frozen=True)
class Request:
    """A closed task: the answers that count, and what they start from."""

    kind: TaskKind
    terms_json: str
    answers: tuple[Answer, ...]  # accepted ones, one for each site
    round: int = 0
    before: str = ""  # digest: of the pooled scaler (initialise), of the round's prior (fit)
    input_names: tuple[str, ...] = ()  # rule: of the model's inputs; without them no reference is made


@dataclass(frozen=True)
class Result:
    """What came of a closed task."""

    kind: TaskKind
    digest: str = ""  # of the scaler, the prior, or the reference where there is one
    size: int = 0  # bytes
    rows: int = 0  # statistics: of the sites that were pooled
    excluded: Mapping[str, str] = field(default_factory=dict)  # statistics: site → reason
    made: PriorMade | None = None  # fit
    rule: GlobalRule | None = None  # rule


@dataclass(frozen=True)
class Failed:
    """Why there is no result: an error of `fedmap.errors` by its code."""

    code: str
    message: str
    hint: str


_REQUEST: TypeAdapter[Request] = TypeAdapter(Request)
_REPLY: TypeAdapter[Result | Failed] = TypeAdapter(Result | Failed)


def to_line(message: Request | Result | Failed) -> bytes:
    """One line of JSON. A number that is not finite has none: a ValueError."""
    return json.dumps(asdict(message), allow_nan=False).encode() + b"\n"


def request_of(line: bytes) -> Request:
    """Raises ValueError for what is no request."""
    return _REQUEST.validate_json(line)


def reply_of(line: bytes) -> Result | Failed:
    """Raises ValueError for what is no reply, such as one that was cut off."""
    return _REPLY.validate_json(line)


class EstimationProcess:
    """The parent's end. One thread asks; any may close."""

    def __init__(
        self, blobs: Path, command: tuple[str, ...] = _COMMAND, longest_seconds: float = _LONGEST_SECONDS
    ) -> None:
        """A computation that takes longer than `longest_seconds` counts as hung, and its process is ended."""
        self._command = (*command, str(blobs), str(os.getpid()))
        self._longest_seconds = longest_seconds
        self._asking = threading.Lock()
        self._lock = threading.Lock()  # for the two below
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process that is running now, if one is."""
        with self._lock:
            return None if self._process is None or self._process.poll() is not None else self._process.pid

    def start(self) -> subprocess.Popen[bytes] | None:
        """The process, started where there is none; None where it cannot be."""
        if self.pid is None:
            self._end()
        with self._lock:
            if self._process is None and not self._closed:
                pipe = subprocess.PIPE
                with suppress(OSError):  # too many processes, no memory: the next request tries again
                    self._process = subprocess.Popen(
                        self._command, stdin=pipe, stdout=pipe, env=os.environ | _ONE_THREAD
                    )
            return None if self._closed else self._process

    def ask(self, request: Request) -> Result:
        """Waits for the result; an error of `fedmap.errors` where there is none."""
        with self._asking:
            return self._answer(request)

    def _answer(self, request: Request) -> Result:
        process = self.start()
        if process is None:
            raise _crashed("could not be started", "")
        assert process.stdin is not None
        assert process.stdout is not None
        hung = threading.Event()

        def end() -> None:
            hung.set()
            process.kill()

        watch = threading.Timer(self._longest_seconds, end)
        watch.daemon = True
        watch.start()
        try:
            process.stdin.write(to_line(request))
            process.stdin.flush()
            reply = reply_of(process.stdout.readline())
        except (OSError, ValueError) as error:  # its end of a pipe is gone, or the reply was cut off
            crash = _crashed("ended before it had a result", self._end())
            raise (self._too_long() if hung.is_set() else crash) from error
        finally:
            watch.cancel()
        if isinstance(reply, Failed):
            raise _ERRORS.get(reply.code, FedmapError)(reply.message, hint=reply.hint)
        if reply.kind != request.kind:
            raise _crashed("answered something else", self._end())
        return reply

    def close(self) -> None:
        """Ends the process, also in the middle of a computation; whoever waits for a result has an error."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()
        with self._asking:
            self._end()

    def _end(self) -> str:
        """Makes sure that the process is gone; says how it ended. What it never read is lost with it."""
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return ""
        process.kill()
        code = process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):  # unread bytes and nobody to take them
                if pipe is not None:
                    pipe.close()
        return f" (signal {-code})" if code < 0 else f" (exit code {code})"

    def _too_long(self) -> TrainingError:
        return TrainingError(
            f"the estimation process had no result in {self._longest_seconds / 60:g} minutes, and was ended",
            hint="look at the machine's load, memory and disk; raise limits.estimation_minutes if it really "
            "takes so long; `fedmap-aggregator study resume` tries again",
        )


def _crashed(what: str, how: str) -> TrainingError:
    return TrainingError(
        f"the estimation process {what}{how}",
        hint="the next request starts it again; look at the aggregator's log, its memory limit and its disk",
    )


def estimate(request: Request, blobs: BlobStore) -> Result:
    """Pure but for the blobs: the same request over the same blobs gives the same result."""
    centre, reader = _centre(request.terms_json)
    network, settings = centre.model.network, centre.plan.prior
    sent = {answer.site: answer for answer in request.answers}

    def tensors(site: str) -> Path:
        return blobs.existing(sent[site].tensors_digest)

    match request.kind:
        case "statistics":
            told = {site: content_as(StatisticsAnswer, answer) for site, answer in sent.items()}

            def sums(site: str) -> FeatureStatistics:
                what = f"the statistics of {site}"
                return decode_statistics(tensors(site), told[site].rows, network.inputs, what)

            pooled = centre.pool({site: one.layout_digest for site, one in told.items()}, sums)
            mean, deviation = pooled.scaler.mean, pooled.scaler.deviation
            data = encode_tensors({"scaler.mean": mean, "scaler.deviation": deviation})
            return Result("statistics", blobs.put(data), len(data), pooled.rows, pooled.excluded)
        case "initialise":
            (site,) = sent
            scaler = _scaler(blobs.existing(request.before), network.inputs)
            first = centre.first(decode_theta(network, tensors(site)), scaler)
            data = encode_prior(network, settings, first)
            return Result("initialise", blobs.put(data), len(data))
        case "fit":
            before = decode_prior(network, settings, blobs.existing(request.before))
            step = centre.next(
                request.round,
                before.prior,
                {site: _log_omega(answer) for site, answer in sent.items()},
                lambda site: reader.read(blobs.path(sent[site].tensors_digest), f"the update of {site}"),
            )
            data = encode_prior(network, settings, PriorFile(step.prior, before.scaler))
            made = PriorMade(step.weights, step.penalty, step.convex_penalty)
            return Result("fit", blobs.put(data), len(data), made=made)
        case "rule":
            terms: dict[str, RuleTerms] = {}
            references: dict[str, ReferenceTerms] = {}
            for site, answer in sent.items():
                path = tensors(site) if answer.tensors_digest else None
                told_terms = content_as(RuleAnswer, answer)
                terms[site], reference = terms_of(centre.plan, told_terms, path, f"the terms of {site}")
                if reference is not None:
                    references[site] = reference
            ruled = centre.rule(terms, references, request.input_names)
            data = b"" if ruled.reference is None else ruled.reference.model_dump_json().encode()
            return Result("rule", blobs.put(data) if data else "", len(data), rule=told_rule(ruled.rule))
        case "evaluate":
            return Result("evaluate")


@lru_cache(maxsize=8)
def _centre(terms_json: str) -> tuple[CentreStep, UpdateReader]:
    centre = CentreStep.of(parse_terms(terms_json))
    return centre, UpdateReader(centre.model.network)


def _scaler(path: Path, inputs: int) -> Scaler:
    expected = dict.fromkeys(("scaler.mean", "scaler.deviation"), Expected("F32", (inputs,)))
    arrays = decode_tensors(path, expected, "the pooled scaler")
    mean, deviation = (torch.from_numpy(arrays[name].copy()) for name in expected)
    return Scaler(mean, deviation)


def _log_omega(answer: Answer) -> float:
    log_omega = content_as(FitAnswer, answer).log_omega
    if log_omega is None:
        raise ModelError(f"the update of {answer.site} has no weight", hint="restore the state from a backup")
    return log_omega


def serve(requests: BinaryIO, replies: BinaryIO, blobs: BlobStore) -> None:
    """One request at a time until the requests end."""
    for line in requests:
        reply: Result | Failed
        try:
            reply = estimate(request_of(line), blobs)
        except FedmapError as error:
            reply = Failed(error.code, error.message, error.hint)
        replies.write(to_line(reply))
        replies.flush()


def end_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent is gone, also in the middle of a computation."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before we asked
        sys.exit(0)


def _replies_only() -> BinaryIO:
    """Standard output for replies alone: whatever a library prints goes to standard error."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return replies


def main() -> None:
    folder, parent = Path(sys.argv[1]), int(sys.argv[2])
    end_with_parent(parent)
    for stop in (signal.SIGINT, signal.SIGTERM):  # meant for the parent, which then ends this process
        signal.signal(stop, signal.SIG_IGN)
    log.configure("warning", service="estimation")  # also tells of a crash
    os.nice(_NICE)
    torch.set_num_threads(1)
    serve(sys.stdin.buffer, _replies_only(), BlobStore(folder))


if __name__ == "__main__":
    main()
