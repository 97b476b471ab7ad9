"""The exit gate: what is below the floor stays home, what leaves is described, and no patient is in it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedmap.contract.v1.values import (
    EvaluationAnswer,
    FailureAnswer,
    FitAnswer,
    GlobalRule,
    RuleAnswer,
    Score,
    TaskKind,
)
from fedmap.errors import DataError
from fedmap.files.digests import sha256_hex
from fedmap.study.answers import Work, encode_work
from fedmap.study.models import model_of
from fedmap.study.tensors.parameter_files import PriorFile, decode_parameters
from fedmap.study.terms import StudyTerms
from fedmap_site.exit.checks import WITHHELD_NOTE
from fedmap_site.exit.gate import ExitGate
from fedmap_site.exit.item import OutboxItem
from fedmap_site.policy import SitePolicy
from tests.site_agent.stages import IDENTIFIER, Bench, said, smaller, task, terms_of

RULE = GlobalRule(threshold=0.5)
KINDS: tuple[TaskKind, ...] = ("statistics", "initialise", "fit", "rule", "evaluate")


def automatic(**options: float) -> SitePolicy:
    return SitePolicy.model_validate(
        {"min_rows": 10, "min_events": 2, "min_cell": 5, "egress": "automatic"} | options
    )


def outcomes(item: OutboxItem) -> dict[str, str]:
    return {check.name: check.outcome for check in item.manifest.checks}


def tensors(item: OutboxItem) -> bytes:
    assert item.tensors_path is not None
    return item.tensors_path.read_bytes()


def test_an_answer_waits_for_review_unless_the_policy_says_automatic(tmp_path: Path) -> None:
    item, _ = Bench(tmp_path).go(task("fit", 1))
    assert item.status.state == "waiting_review"
    item, _ = Bench(tmp_path, policy=automatic()).go(task("fit", 2))
    assert item.status.state == "released"


def test_the_answer_is_bound_to_site_terms_and_tensors(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    item, work = bench.go(task("fit", 1, attempt=2))
    answer = item.answer()
    assert (answer.study, answer.task_id, answer.attempt, answer.site) == ("toy", "round-1", 2, "north")
    assert answer.terms_digest == bench.terms.digest
    assert sha256_hex(item.answer_bytes()) == item.answer_digest
    sent = tensors(item)
    assert sent == encode_work(model_of(bench.terms.plan).network, work.tensors)
    assert (answer.tensors_size, answer.tensors_digest) == (len(sent), sha256_hex(sent))


def test_the_manifest_names_every_field_and_tensor_and_check(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    item, _ = bench.go(task("fit", 1))
    manifest = json.loads((item.folder / "manifest.json").read_text())
    names = {field["name"] for field in manifest["fields"]}
    assert {"fit.log_omega", "fit.loss", "fit.epochs", "fit.validation_scores[0].value"} <= names
    tensors = {tensor["name"]: tensor for tensor in manifest["tensors"]}
    assert tensors["trunk.0.weight"]["shape"] == [8, 3]
    assert tensors["trunk.0.weight"]["dtype"] == "float32"
    assert tensors["trunk.0.weight"]["norm"] > 0
    assert manifest["policy"]["digest"] == bench.policy.digest
    assert manifest["policy"]["min_cell"] == 5
    assert {check["name"] for check in manifest["checks"]} >= {"floors", "tensors", "validation scores"}
    text = item.manifest_text()
    for part in ("trunk.0.weight", "fit.log_omega", item.answer_digest, "floors: passed"):
        assert part in text


@pytest.mark.parametrize("terms", [terms_of(), terms_of("cox")], ids=["binary", "cox"])
def test_a_planted_identifier_is_in_nothing_that_is_written(tmp_path: Path, terms: StudyTerms) -> None:
    bench = Bench(tmp_path, terms, automatic())
    for kind in KINDS:
        bench.go(task(kind, 1, rule=RULE))
    bench.gate.fail(task("fit", 2), bench.terms, DataError("north", (f"row {IDENTIFIER}",), hint=IDENTIFIER))
    assert len(bench.outbox.items("released")) == 6
    written = bench.everything_written()
    assert IDENTIFIER.encode() not in written
    assert b"943-476" not in written


@pytest.mark.parametrize("kind", KINDS)
def test_below_the_floor_of_rows_only_a_failure_leaves_and_no_count(tmp_path: Path, kind: TaskKind) -> None:
    bench = Bench(tmp_path)
    tiny = smaller(smaller(bench.dataset(), "train", 6), "validation", 2)
    item, _ = bench.go(task(kind, 1, rule=RULE), tiny)
    failure = said(item, FailureAnswer)
    assert failure.code == "data"
    assert not any(character.isdigit() for character in failure.reason)
    assert item.tensors_path is None
    assert item.status.state == "released"
    assert outcomes(item)["floors"] == "refused"


def test_below_the_floor_of_events_only_a_failure_leaves(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    gate = ExitGate("north", automatic(min_events=1000), bench.outbox, bench.clock)
    request = task("fit", 1)
    item = gate.pass_out(request, bench.terms, bench.work(request), bench.dataset(), bench.prior())
    assert said(item, FailureAnswer).code == "data"


def test_the_plan_cannot_lower_the_sites_floor(tmp_path: Path) -> None:
    bench = Bench(tmp_path, policy=automatic(min_cell=50))
    assert bench.terms.plan.limits.min_cell == 5
    data = smaller(bench.dataset(), "test", 40)
    item, _ = bench.go(task("evaluate", rule=RULE), data)
    assert {score.note for score in said(item, EvaluationAnswer).scores} == {WITHHELD_NOTE}


@pytest.mark.parametrize(
    ("kind", "rows", "events"), [("binary", 1, None), ("binary", 4, None), ("binary", 60, 1),
                                 ("binary", 60, 4), ("cox", 60, 3)]
)  # fmt: skip
def test_scores_of_few_rows_or_of_a_class_with_few_are_withheld(
    tmp_path: Path, kind: str, rows: int, events: int | None
) -> None:
    bench = Bench(tmp_path, terms_of(kind))
    data = smaller(bench.dataset(), "test", rows)
    outcome = data.test.target if data.test.event is None else data.test.event
    if events is not None:
        outcome.fill_(0)
        outcome[:events] = 1
    item, work = bench.go(task("evaluate", rule=RULE if kind == "binary" else GlobalRule()), data)
    scores = said(item, EvaluationAnswer).scores
    assert len(scores) == len(said(work, EvaluationAnswer).scores)
    assert {(score.value, score.note) for score in scores} == {(None, WITHHELD_NOTE)}
    assert outcomes(item)["test scores"] == "withheld"


def test_no_event_at_all_is_no_small_cell(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    data = bench.dataset()
    data.test.target.fill_(0)
    item, _ = bench.go(task("evaluate", rule=RULE), data)
    scores = {score.metric: score.value for score in said(item, EvaluationAnswer).scores}
    assert scores["brier"] is not None
    assert scores["auroc"] is None


def test_validation_loss_and_scores_of_few_rows_stay_home_and_the_weight_still_leaves(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    item, work = bench.go(task("fit", 1), smaller(bench.dataset(), "validation", 3))
    made, fit = said(work, FitAnswer), said(item, FitAnswer)
    assert made.validation_loss is not None
    assert fit.validation_loss is None
    assert fit.log_omega == made.log_omega
    assert {score.note for score in fit.validation_scores} == {WITHHELD_NOTE}


def test_a_threshold_from_few_validation_rows_stays_home(tmp_path: Path) -> None:
    bench = Bench(tmp_path, terms_of(seed=1))  # whose first model tells the classes apart enough for one
    full, _ = bench.go(task("rule"))
    assert said(full, RuleAnswer).threshold is not None
    item, _ = bench.go(task("rule", attempt=2), smaller(bench.dataset(), "validation", 4))
    rule = said(item, RuleAnswer)
    assert (rule.threshold, rule.validation_rows) == (None, 0)


@pytest.mark.parametrize(("rule", "rounded"), [("youden", True), ("prevalence", False)])
def test_a_threshold_that_is_one_patients_probability_leaves_rounded(
    tmp_path: Path, rule: str, rounded: bool
) -> None:
    bench = Bench(tmp_path, terms_of(rule=rule, seed=1))
    threshold = said(bench.go(task("rule"))[0], RuleAnswer).threshold
    assert threshold is not None
    assert (threshold == round(threshold, 2)) == rounded


def test_notes_lose_their_small_numbers(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    few, many = Score("global", "auroc", note="only 3 rows of 60"), Score("global", "brier", 0.1, "60 rows")
    work = Work(EvaluationAnswer((few, many)))
    item = bench.gate.pass_out(task("evaluate"), bench.terms, work, bench.dataset(), bench.prior())
    few, many = said(item, EvaluationAnswer).scores
    assert "3" not in few.note
    assert many.note == "60 rows"


def distance(bench: Bench, item: OutboxItem, prior: PriorFile) -> float:
    sent = decode_parameters(model_of(bench.terms.plan).network, tensors(item))
    return float((sent.theta - prior.prior.mu).norm())


def test_a_long_step_is_clipped_on_the_way_out_and_the_own_model_stays_exact(tmp_path: Path) -> None:
    bench = Bench(tmp_path, policy=automatic(clip_norm=0.01))
    item, work = bench.go(task("fit", 1))
    prior = bench.prior()
    assert distance(bench, item, prior) == pytest.approx(0.01, rel=1e-3)
    assert work.model is not None
    assert float((work.model.parameters.theta - prior.prior.mu).norm()) > 0.02
    assert outcomes(item)["clip"] == "changed"


def test_in_a_consensus_round_the_model_leaves_with_its_multiplier_and_the_clip_holds_for_both(
    tmp_path: Path,
) -> None:
    plan = terms_of().plan
    plan = plan.model_copy(update={"training": replace(plan.training, consensus_share=0.5)})
    network, terms = model_of(plan).network, replace(terms_of(), plan=plan)
    for folder in ("free", "clipping"):
        (tmp_path / folder).mkdir()
    bench = Bench(tmp_path / "free", terms, automatic())
    item, work = bench.go(task("fit", 1))
    mu = bench.prior().prior.mu
    assert work.model is not None
    assert work.model.multiplier is not None
    step = work.model.parameters.theta - mu
    assert torch.allclose(work.model.multiplier, step, atol=1e-6), "the first step"
    left = decode_parameters(network, tensors(item)).theta - mu
    assert torch.allclose(left, 2 * step, atol=1e-6)
    assert "θ_k + u_k" in item.manifest_text(), "the reviewer is told what the vector is"

    bench = Bench(tmp_path / "clipping", terms, automatic(clip_norm=0.01))
    item, clipped = bench.go(task("fit", 1))
    assert outcomes(item)["clip"] == "changed"
    assert distance(bench, item, bench.prior()) == pytest.approx(0.01, rel=1e-3)
    assert clipped.model is not None
    assert clipped.model.multiplier is not None
    assert torch.equal(clipped.model.multiplier, work.model.multiplier), "what is kept stays exact"


def test_a_short_step_is_left_alone_bit_for_bit(tmp_path: Path) -> None:
    bench = Bench(tmp_path, policy=automatic(clip_norm=1e6))
    item, work = bench.go(task("fit", 1))
    assert tensors(item) == encode_work(model_of(bench.terms.plan).network, work.tensors)
    assert outcomes(item)["clip"] == "passed"


def test_noise_is_added_with_a_secret_seed_and_said_in_the_manifest(tmp_path: Path) -> None:
    network = model_of(terms_of().plan).network
    sent = []
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        bench = Bench(tmp_path / place, policy=automatic(clip_norm=0.5, noise_multiplier=2.0))
        item, work = bench.go(task("fit", 1))
        sent.append(decode_parameters(network, tensors(item)))
        assert outcomes(item)["noise"] == "changed"
        assert "σ = 1" in item.manifest_text()
        assert bool((sent[-1].buffers.variance >= 0).all())
        assert work.model is not None
        spread = float((sent[-1].theta - work.model.parameters.theta).std())
        assert 0.5 < spread < 2.0
    assert not torch.equal(sent[0].theta, sent[1].theta)


def test_a_failure_leaves_as_a_code_and_a_fixed_sentence(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    error = DataError("north", ("sbp: 3 of 90 values are missing",), hint="mend them")
    item = bench.gate.fail(task("fit", 1), bench.terms, error)
    failure = said(item, FailureAnswer)
    assert failure.code == "data"
    assert "sbp" not in failure.reason
    assert not any(character.isdigit() for character in failure.reason)
    assert item.status.state == "released"


def test_an_answer_that_is_there_already_is_not_replaced(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    first, _ = bench.go(task("fit", 1))
    again = bench.gate.fail(task("fit", 1), bench.terms, DataError("north", ("x",), hint="y"))
    assert again.answer_digest == first.answer_digest
