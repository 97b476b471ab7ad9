"""The estimation process, JSON lines in and out:

    python -m fedmap_aggregator.estimation.worker BLOBS PARENT

It computes what takes long or much memory, so that the server goes on answering: pooled scaler, first prior,
next prior, pooled rule and reference. It reads and writes blobs itself, knows no study's state, and ends with
its parent. A request that cannot be met is a reply; a defect ends the process, and the parent starts another.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import torch

from fedmap.algorithm.model.network import Network
from fedmap.algorithm.pooling.statistics import FeatureStatistics, Scaler
from fedmap.errors import FedmapError
from fedmap.files.tensors import Expected, decode_tensors, encode_tensors
from fedmap.process import log
from fedmap.scoring.decision_rules import RuleTerms
from fedmap.shift.told.terms import ReferenceTerms
from fedmap.study.answers import told_rule
from fedmap.study.centre_step import CentreStep
from fedmap.study.tensors.parameter_files import (
    PriorFile,
    decode_prior,
    decode_statistics,
    decode_theta,
    encode_prior,
)
from fedmap.study.tensors.rule_files import RuleTensors, decode_rule
from fedmap.study.tensors.update_reader import UpdateReader
from fedmap.study.terms import parse_terms
from fedmap_aggregator.course.messages import (
    EstimatedPrior,
    EstimatedRound,
    Failed,
    InitialPrior,
    NextPrior,
    PooledRule,
    PooledStatistics,
    PoolRule,
    PoolStatistics,
    Reply,
    Request,
    Result,
    request_of,
    to_line,
)
from fedmap_aggregator.store.blobs import BlobStore

_NICE = 10  # the server comes first
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class _Study:
    """What the terms say, built once."""

    centre: CentreStep
    reader: UpdateReader

    @property
    def network(self) -> Network:
        return self.centre.model.network


@lru_cache(maxsize=8)
def _study(terms_json: str) -> _Study:
    centre = CentreStep.of(parse_terms(terms_json))
    return _Study(centre, UpdateReader(centre.model.network))


def estimate(request: Request, blobs: BlobStore) -> Result:
    """Pure but for the blobs: the same request over the same blobs gives the same result."""
    study = _study(request.terms_json)
    match request:
        case PoolStatistics():
            return _pool_statistics(study, request, blobs)
        case InitialPrior():
            return _initial_prior(study, request, blobs)
        case NextPrior():
            return _next_prior(study, request, blobs)
        case PoolRule():
            return _pool_rule(study, request, blobs)


def _pool_statistics(study: _Study, request: PoolStatistics, blobs: BlobStore) -> PooledStatistics:
    told = {one.site: one for one in request.sites}

    def load(site: str) -> FeatureStatistics:
        path, what = blobs.existing(told[site].tensors_digest), f"the statistics of {site}"
        return decode_statistics(path, told[site].rows, study.network.inputs, what)

    pooled = study.centre.pool({site: one.layout_digest for site, one in told.items()}, load)
    scaler = pooled.scaler
    data = encode_tensors({"scaler.mean": scaler.mean, "scaler.deviation": scaler.deviation})
    return PooledStatistics(blobs.put(data), len(data), pooled.rows, pooled.excluded)


def _initial_prior(study: _Study, request: InitialPrior, blobs: BlobStore) -> EstimatedPrior:
    network = study.network
    expected = dict.fromkeys(("scaler.mean", "scaler.deviation"), Expected("F32", (network.inputs,)))
    arrays = decode_tensors(blobs.existing(request.scaler_digest), expected, "the pooled scaler")
    mean, deviation = (torch.from_numpy(arrays[name].copy()) for name in expected)
    theta = decode_theta(network, blobs.existing(request.theta_digest))
    data = encode_prior(network, study.centre.plan.prior, study.centre.first(theta, Scaler(mean, deviation)))
    return EstimatedPrior(blobs.put(data), len(data))


def _next_prior(study: _Study, request: NextPrior, blobs: BlobStore) -> EstimatedRound:
    network, settings = study.network, study.centre.plan.prior
    before = decode_prior(network, settings, blobs.existing(request.prior_digest))
    digests = {update.site: update.tensors_digest for update in request.updates}
    step = study.centre.next(
        request.round,
        before.prior,
        {update.site: update.log_omega for update in request.updates},
        lambda site: study.reader.read(blobs.path(digests[site]), f"the update of {site}"),
    )
    data = encode_prior(network, settings, PriorFile(step.prior, before.scaler))
    return EstimatedRound(blobs.put(data), len(data), step.weights, step.penalty, step.convex_penalty)


def _pool_rule(study: _Study, request: PoolRule, blobs: BlobStore) -> PooledRule:
    terms: dict[str, RuleTerms] = {}
    references: dict[str, ReferenceTerms] = {}
    for one in request.sites:
        found = RuleTensors()
        if one.tensors_digest:
            path, what = blobs.existing(one.tensors_digest), f"the terms of {one.site}"
            found = decode_rule(study.centre.plan, path, one.joined_intervals, one.reference, what)
        terms[one.site] = RuleTerms(one.threshold, one.validation_rows, found.baseline)
        if found.reference is not None:
            references[one.site] = found.reference
    ruled = study.centre.rule(terms, references, request.input_names)
    reference = ruled.reference
    return PooledRule(
        told_rule(ruled.rule),
        "" if reference is None else blobs.put(reference.model_dump_json().encode()),
    )


def serve(requests: BinaryIO, replies: BinaryIO, blobs: BlobStore) -> None:
    """One request at a time until the requests end."""
    for line in requests:
        reply: Reply
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
