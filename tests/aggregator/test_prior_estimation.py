"""Estimation in its own process: the algorithm's numbers bit for bit, and every way to lose the process."""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmap.algorithm.pooling.statistics import FeatureStatistics, Scaler, make_scaler, pool_statistics
from fedmap.algorithm.prior.aggregation import next_prior
from fedmap.algorithm.prior.values import initial_prior
from fedmap.contract.v1.values import (
    Answer,
    FitAnswer,
    GlobalRule,
    InitialModelAnswer,
    RuleAnswer,
    StatisticsAnswer,
)
from fedmap.errors import ModelError, NotFoundError, TrainingError
from fedmap.files.digests import sha256_hex
from fedmap.scoring.decision_rules import RuleTerms, pool_rule
from fedmap.shift.reference import Reference
from fedmap.shift.told.terms import reference_terms
from fedmap.study.answers import content_as
from fedmap.study.plan.inputs import planned_inputs
from fedmap.study.record import PriorMade
from fedmap.study.tensors.parameter_files import PriorFile, decode_prior, encode_prior, encode_statistics
from fedmap.study.tensors.rule_files import RuleTensors, encode_rule
from fedmap_aggregator.estimation.process import (
    EstimationProcess,
    Request,
    Result,
    estimate,
    reply_of,
    request_of,
    to_line,
)
from fedmap_aggregator.store.blobs import BlobStore
from tests.aggregator import small_study as made
from tests.aggregator.small_study import Small

BINARY = made.small()
SURVIVAL = made.small(made.SURVIVAL)
LONGEST = 60  # seconds; only a defect takes that long
PROGRAM = (sys.executable, "-m", "fedmap_aggregator.estimation.process")
OTHER_LAYOUT = sha256_hex(b"other inputs")


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


@pytest.fixture
def process(tmp_path: Path, blobs: BlobStore) -> Iterator[EstimationProcess]:  # noqa: ARG001 - makes the folder
    with closing(EstimationProcess(tmp_path / "blobs")) as running:
        yield running


def _prior_file(study: Small) -> PriorFile:
    network = study.model.network
    prior = initial_prior(network, study.terms.plan.prior, network.initialise(9))
    return PriorFile(prior, Scaler(torch.zeros(network.inputs), torch.ones(network.inputs)))


def _round(study: Small, blobs: BlobStore, sites: int = 3) -> Request:
    start = encode_prior(study.model.network, study.terms.plan.prior, _prior_file(study))
    updates = tuple(
        _answer(f"site-{k}", blobs, made.fit_bytes(study, seed=k), fit=FitAnswer(log_omega=-0.1 * k - 1 / 3))
        for k in range(sites)
    )
    return Request("fit", study.terms.to_json(), updates, 1, blobs.put(start))


def _answer(site: str, blobs: BlobStore, tensors: bytes = b"", **content: Any) -> Answer:
    return Answer(site=site, tensors_digest=blobs.put(tensors) if tensors else "", **content)


def _statistics(blobs: BlobStore, layouts: dict[str, str]) -> Request:
    sites = [
        _answer(site, blobs, encode_statistics(_sums(k)), statistics=StatisticsAnswer(40 + k, layout))
        for k, (site, layout) in enumerate(layouts.items())
    ]
    return Request("statistics", BINARY.terms.to_json(), tuple(sites))


def _rule(study: Small, *sites: Answer) -> Request:
    return Request("rule", study.terms.to_json(), sites)


def _sums(k: int) -> FeatureStatistics:
    one = made.statistics(40 + k)
    return FeatureStatistics(one.rows, one.mean + k, one.m2)


# --- the numbers


def _with_consensus(study: Small) -> Small:
    """The same study with consensus rounds in its plan."""
    plan = study.terms.plan
    plan = plan.model_copy(update={"training": replace(plan.training, consensus_share=0.5)})
    return replace(study, terms=replace(study.terms, plan=plan))


@pytest.mark.parametrize(
    "study", [BINARY, SURVIVAL, _with_consensus(BINARY)], ids=["convex", "quadratic", "consensus"]
)
def test_the_process_gives_the_algorithms_next_prior_bit_for_bit(
    study: Small, process: EstimationProcess, blobs: BlobStore
) -> None:
    request = _round(study, blobs)
    found = process.ask(request)
    plan, network = study.terms.plan, study.model.network
    step = next_prior(
        network.spec,
        plan.prior,
        plan.settings.aggregation_in(1, study.terms.rounds),
        _prior_file(study).prior,
        {answer.site: content_as(FitAnswer, answer).log_omega or 0.0 for answer in request.answers},
        lambda site: made.parameters(study, seed=int(site.removeprefix("site-"))),
    )
    expected = encode_prior(network, plan.prior, PriorFile(step.prior, _prior_file(study).scaler))
    assert (found.digest, found.size) == (sha256_hex(expected), len(expected))
    assert blobs.existing(found.digest).read_bytes() == expected
    assert found.made == PriorMade(step.weights, step.penalty, step.convex_penalty)


def test_statistics_become_the_scaler_of_the_first_prior(blobs: BlobStore) -> None:
    pooled = estimate(_statistics(blobs, {"a": made.LAYOUT, "b": made.LAYOUT}), blobs)
    assert (pooled.rows, pooled.excluded) == (81, {})
    network, plan = BINARY.model.network, BINARY.terms.plan
    drawn = _answer("a", blobs, made.theta_bytes(BINARY, seed=4), initial_model=InitialModelAnswer())
    request = Request("initialise", BINARY.terms.to_json(), (drawn,), before=pooled.digest)
    first = estimate(request, blobs)
    file = decode_prior(network, plan.prior, blobs.existing(first.digest))
    scaler = make_scaler(pool_statistics({"a": _sums(0), "b": _sums(1)}), planned_inputs(plan).scaled)
    assert torch.equal(file.scaler.mean, scaler.mean)
    assert torch.equal(file.scaler.deviation, scaler.deviation)
    assert torch.equal(file.prior.mu, network.initialise(4))
    assert torch.equal(file.prior.psi, initial_prior(network, plan.prior, network.initialise(4)).psi)


@pytest.mark.parametrize(
    ("layouts", "left_out"),
    [
        ({"a": OTHER_LAYOUT, "b": made.LAYOUT, "c": made.LAYOUT}, ["a"]),
        ({"d": made.LAYOUT, "c": made.LAYOUT, "b": OTHER_LAYOUT, "a": OTHER_LAYOUT}, ["c", "d"]),
    ],
    ids=["most", "of equally many the smallest name"],
)
def test_sites_with_other_inputs_than_most_are_left_out_by_name(
    layouts: dict[str, str], left_out: list[str], blobs: BlobStore
) -> None:
    pooled = estimate(_statistics(blobs, layouts), blobs)
    assert sorted(pooled.excluded) == left_out
    assert all("inputs differ" in reason for reason in pooled.excluded.values())
    assert pooled.rows == sum(40 + k for k, site in enumerate(layouts) if site not in left_out)


def test_the_threshold_is_pooled_as_the_lab_does(blobs: BlobStore) -> None:
    told = {"a": RuleAnswer(0.3, 10), "b": RuleAnswer(0.5, 30), "c": RuleAnswer()}
    request = _rule(BINARY, *(_answer(site, blobs, rule=rule) for site, rule in told.items()))
    result = estimate(request, blobs)
    assert result.rule is not None
    assert result.rule.threshold == pytest.approx(0.45)
    assert reply_of(to_line(result)) == result


def test_the_baseline_is_pooled_on_the_plans_grid(blobs: BlobStore) -> None:
    sites = [_answer(site, blobs, made.baseline_bytes(), rule=RuleAnswer()) for site in "ab"]
    result = estimate(_rule(SURVIVAL, *sites), blobs)
    terms = {name: RuleTerms(baseline=made.baseline()) for name in ("a", "b")}
    hazard = pool_rule(SURVIVAL.terms.plan, terms).baseline
    assert hazard is not None
    assert result.rule == GlobalRule(None, "", hazard.grid, tuple(hazard.cumulative.tolist()))
    assert reply_of(to_line(result)) == result


def _reference_rule(blobs: BlobStore, sites: str, rows: int = 60) -> Request:
    inputs = planned_inputs(BINARY.terms.plan)
    asked = []
    for place, site in enumerate(sites):
        values = torch.randn(rows, inputs.count, generator=torch.Generator().manual_seed(place))
        data = encode_rule(RuleTensors(None, reference_terms(values, inputs.scaled, 10)))
        asked.append(_answer(site, blobs, data, rule=RuleAnswer(0.4, 20, reference=True)))
    names = tuple(f"input {place}" for place in range(inputs.count))
    return replace(_rule(BINARY, *asked), input_names=names)


def test_the_reference_is_pooled_with_the_rule_and_kept_as_a_blob(blobs: BlobStore) -> None:
    request = _reference_rule(blobs, "abc")
    assert request_of(to_line(request)) == request
    result = estimate(request, blobs)
    assert result.rule is not None
    assert result.rule.threshold == pytest.approx(0.4)
    reference = Reference.model_validate_json(blobs.existing(result.digest).read_bytes())
    assert (reference.sites, reference.rows) == (3, 180)
    assert tuple(one.name for one in reference.inputs) == request.input_names
    assert estimate(replace(request, answers=request.answers[::-1]), blobs) == result
    assert reply_of(to_line(result)) == result


def test_a_reference_that_cannot_be_pooled_leaves_the_rule_alone(blobs: BlobStore) -> None:
    three = _reference_rule(blobs, "abc")
    for request in (
        _reference_rule(blobs, "a"),
        _reference_rule(blobs, "ab", rows=4),  # below the floor: nothing is told
        replace(three, input_names=()),
        replace(three, input_names=three.input_names[:-1]),
    ):
        result = estimate(request, blobs)
        assert result.rule is not None
        assert result.rule.threshold == pytest.approx(0.4)
        assert result.digest == ""


@given(st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False, allow_infinity=False)))
def test_no_bit_of_a_number_is_lost_between_the_processes(weights: dict[str, float]) -> None:
    result = Result("fit", "0" * 64, 1, made=PriorMade(weights, 0.1, -0.0))
    assert reply_of(to_line(result)) == result
    told = tuple(Answer(site=site, fit=FitAnswer(log_omega=value)) for site, value in weights.items())
    request = Request("fit", "{}", told, 3)
    assert request_of(to_line(request)) == request


def test_files_with_tensors_in_another_order_are_read_by_name(blobs: BlobStore) -> None:
    """A second layout among the updates: what was learnt of the first must not be used on it."""
    request = _round(BINARY, blobs, sites=4)
    mixed = list(request.answers)
    for k in (1, 3):
        data = made.reordered(made.fit_bytes(BINARY, seed=k))
        mixed[k] = replace(mixed[k], tensors_digest=blobs.put(data))
    assert mixed[1].tensors_digest != request.answers[1].tensors_digest
    assert estimate(replace(request, answers=tuple(mixed)), blobs) == estimate(request, blobs)


# --- bad blobs


def test_an_update_that_is_gone_fails_the_request_and_not_the_process(
    process: EstimationProcess, blobs: BlobStore
) -> None:
    request = _round(BINARY, blobs)
    blobs.existing(request.before).unlink()
    with pytest.raises(NotFoundError, match="no blob") as missing:
        process.ask(request)
    assert missing.value.hint
    pid = process.pid
    assert process.ask(_round(BINARY, blobs)).size > 0
    assert process.pid == pid


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 2])
def test_a_blob_that_went_bad_on_disk_does_not_reach_the_prior(
    bad: float, place: int, blobs: BlobStore
) -> None:
    """The first of a layout is read strictly; the others are caught where they are summed."""
    request = _round(BINARY, blobs)
    path = blobs.existing(request.answers[place].tensors_digest)
    path.write_bytes(made.poisoned(path.read_bytes(), "trunk.0.weight", bad))
    with pytest.raises(ModelError, match="not finite"):
        estimate(request, blobs)


def test_a_blob_that_was_cut_short_does_not_reach_the_prior(blobs: BlobStore) -> None:
    request = _round(BINARY, blobs)
    path = blobs.existing(request.answers[2].tensors_digest)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ModelError):
        estimate(request, blobs)


# --- the process


def _stopped(process: EstimationProcess, blobs: BlobStore) -> int:
    """The process, alive and made to stand still: what it was asked from now on is never answered."""
    process.ask(_round(SURVIVAL, blobs))
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    return process.pid


def test_a_process_killed_at_work_fails_its_request_and_the_next_starts_another(
    process: EstimationProcess, blobs: BlobStore
) -> None:
    pid = _stopped(process, blobs)
    request = _round(BINARY, blobs)
    threading.Timer(0.1, os.kill, (pid, signal.SIGKILL)).start()
    with pytest.raises(TrainingError, match="signal 9") as crash:
        process.ask(request)
    assert "memory" in crash.value.hint
    assert process.ask(request).size > 0
    assert process.pid != pid


def test_close_ends_a_busy_process_and_fails_what_was_asked(
    process: EstimationProcess, blobs: BlobStore
) -> None:
    pid = _stopped(process, blobs)
    threading.Timer(0.1, process.close).start()
    for _ in range(2):
        with pytest.raises(TrainingError):
            process.ask(_round(BINARY, blobs))
    process.close()
    assert process.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ((sys.executable, "-c", "print('hello', flush=True); input()"), "ended before it had a result"),
        ((sys.executable, "-c", "raise SystemExit(3)"), "exit code 3|ended before"),
        (("/no/such/program",), "could not be started"),
    ],
)
def test_a_process_that_cannot_do_its_work_is_an_error(
    command: tuple[str, ...], what: str, tmp_path: Path, blobs: BlobStore
) -> None:
    with closing(EstimationProcess(tmp_path / "blobs", command)) as broken:
        for _ in range(2):
            with pytest.raises(TrainingError, match=what):
                broken.ask(_round(BINARY, blobs))


def test_a_computation_that_hangs_is_ended_and_told(tmp_path: Path, blobs: BlobStore) -> None:
    silent = (sys.executable, "-c", "import sys; [None for _ in sys.stdin]")
    with closing(EstimationProcess(tmp_path / "blobs", silent, longest_seconds=0.2)) as hung:
        with pytest.raises(TrainingError, match=r"no result in .* minutes, and was ended") as told:
            hung.ask(_round(BINARY, blobs))
        assert "limits.estimation_minutes" in told.value.hint
        with pytest.raises(TrainingError, match="was ended"):  # the next request starts another
            hung.ask(_round(BINARY, blobs))


PARENT = """
import sys
from pathlib import Path
from fedmap_aggregator.estimation.process import EstimationProcess, Request
process = EstimationProcess(Path(sys.argv[1]))
process.ask(Request("rule", sys.argv[2], ()))
print(process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_killed_parent_takes_its_process_along_even_in_the_middle_of_work(tmp_path: Path) -> None:
    """The process stands still, so that it cannot see its requests end: the kernel has to end it."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "blobs"), BINARY.terms.to_json()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    with parent:
        child = os.pidfd_open(pid := int(parent.stdout.readline()))
        os.kill(pid, signal.SIGSTOP)
        parent.kill()
        parent.wait(LONGEST)
        gone = select.poll()
        gone.register(child, select.POLLIN)
        assert gone.poll(LONGEST * 1000), "the process outlived its parent"
        os.close(child)


def test_the_process_ends_when_its_requests_end(tmp_path: Path) -> None:
    command = [*PROGRAM, str(tmp_path), str(os.getpid())]
    done = subprocess.run(command, input=b"", capture_output=True, timeout=LONGEST, check=False)
    assert (done.returncode, done.stdout) == (0, b"")


def test_a_process_whose_parent_is_already_gone_does_not_start(tmp_path: Path) -> None:
    command = [*PROGRAM, str(tmp_path), "1"]
    request = to_line(_rule(BINARY))
    done = subprocess.run(command, input=request, capture_output=True, timeout=LONGEST, check=False)
    assert (done.returncode, done.stdout) == (0, b"")


def test_a_defect_is_told_without_what_it_quotes(tmp_path: Path) -> None:
    command = [*PROGRAM, str(tmp_path), str(os.getpid())]
    done = subprocess.run(command, input=b"patient 4711\n", capture_output=True, timeout=LONGEST, check=False)
    assert done.returncode != 0
    assert b"program_failed" in done.stderr
    assert b"4711" not in done.stderr
