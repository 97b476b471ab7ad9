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

from fedmap.algorithm.fit.values import Model
from fedmap.algorithm.pooling.statistics import Scaler, make_scaler, pool_statistics
from fedmap.algorithm.prior.aggregation import next_prior
from fedmap.algorithm.prior.values import initial_prior
from fedmap.errors import FedmapError
from fedmap.files.tensors import Expected, decode_tensors, encode_tensors
from fedmap.process import log
from fedmap.scoring.decision_rules import RuleTerms, pool_rule
from fedmap.shift.told.terms import ReferenceTerms
from fedmap.study.centre_steps import check_step, reference_of, unusual_inputs, usual_sites
from fedmap.study.course.state import GlobalRule
from fedmap.study.models import model_of
from fedmap.study.plan.inputs import planned_inputs
from fedmap.study.tensors.parameter_files import (
    PriorFile,
    decode_prior,
    decode_statistics,
    decode_theta,
    encode_prior,
)
from fedmap.study.tensors.rule_files import RuleTensors, decode_rule
from fedmap.study.tensors.update_reader import UpdateReader
from fedmap.study.terms import StudyTerms, parse_terms
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

    terms: StudyTerms
    model: Model
    reader: UpdateReader


@lru_cache(maxsize=8)
def _study(terms_json: str) -> _Study:
    terms = parse_terms(terms_json)
    model = model_of(terms.plan)
    return _Study(terms, model, UpdateReader(model.network))


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
    usual = usual_sites({one.site: one.layout_digest for one in request.sites})
    inputs = planned_inputs(study.terms.plan)
    by_site = {
        one.site: decode_statistics(
            blobs.existing(one.tensors_digest), one.rows, inputs.count, f"the statistics of {one.site}"
        )
        for one in request.sites
        if one.site in usual
    }
    pooled = pool_statistics(by_site)
    scaler = make_scaler(pooled, inputs.scaled)
    data = encode_tensors({"scaler.mean": scaler.mean, "scaler.deviation": scaler.deviation})
    excluded = {one.site: unusual_inputs(len(usual)) for one in request.sites if one.site not in by_site}
    return PooledStatistics(blobs.put(data), len(data), pooled.rows, excluded)


def _initial_prior(study: _Study, request: InitialPrior, blobs: BlobStore) -> EstimatedPrior:
    network, settings = study.model.network, study.terms.plan.prior
    expected = dict.fromkeys(("scaler.mean", "scaler.deviation"), Expected("F32", (network.inputs,)))
    arrays = decode_tensors(blobs.existing(request.scaler_digest), expected, "the pooled scaler")
    mean, deviation = (torch.from_numpy(arrays[name].copy()) for name in expected)
    prior = initial_prior(network, settings, decode_theta(network, blobs.existing(request.theta_digest)))
    data = encode_prior(network, settings, PriorFile(prior, Scaler(mean, deviation)))
    return EstimatedPrior(blobs.put(data), len(data))


def _next_prior(study: _Study, request: NextPrior, blobs: BlobStore) -> EstimatedRound:
    network, plan = study.model.network, study.terms.plan
    before = decode_prior(network, plan.prior, blobs.existing(request.prior_digest))
    digests = {update.site: update.tensors_digest for update in request.updates}
    step = next_prior(
        network.spec,
        plan.prior,
        plan.settings.aggregation_in(request.round, study.terms.rounds),
        before.prior,
        {update.site: update.log_omega for update in request.updates},
        lambda site: study.reader.read(blobs.path(digests[site]), f"the update of {site}"),
    )
    check_step(step)
    data = encode_prior(network, plan.prior, PriorFile(step.prior, before.scaler))
    return EstimatedRound(blobs.put(data), len(data), step.weights, step.penalty, step.convex_penalty)


def _pool_rule(study: _Study, request: PoolRule, blobs: BlobStore) -> PooledRule:
    plan = study.terms.plan
    by_site: dict[str, RuleTerms] = {}
    references: dict[str, ReferenceTerms] = {}
    for one in request.sites:
        found = RuleTensors()
        if one.tensors_digest:
            path, what = blobs.existing(one.tensors_digest), f"the terms of {one.site}"
            found = decode_rule(plan, path, one.joined_intervals, one.reference, what)
        by_site[one.site] = RuleTerms(one.threshold, one.validation_rows, found.baseline)
        if found.reference is not None:
            references[one.site] = found.reference
    rule = pool_rule(plan, by_site)
    reference = reference_of(references, request.input_names)
    threshold, hazard = rule.threshold, rule.baseline
    return PooledRule(
        GlobalRule(
            None if threshold is None else threshold.value,
            "" if threshold is None else threshold.note or "",
            () if hazard is None else hazard.grid,
            () if hazard is None else tuple(hazard.cumulative.tolist()),
        ),
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
