"""The exit gate: what is below the floor stays home, what leaves is described, and no patient is in it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedmap.contract.v1 import federation_pb2 as pb
from fedmap.data.table.site_dataset import SiteDataset
from fedmap.errors import DataError
from fedmap.study.answer_names import answer_digest
from fedmap.study.models import model_of
from fedmap.study.tensors.parameter_files import PriorFile, decode_parameters
from fedmap.study.terms import StudyTerms
from fedmap_site.exit.checks import WITHHELD_NOTE
from fedmap_site.exit.gate import ExitGate
from fedmap_site.exit.item import OutboxItem
from fedmap_site.policy import SitePolicy
from fedmap_site.work.trainer import Work, perform
from tests.site_agent.stages import IDENTIFIER, Bench, silent, smaller, task, terms_of

RULE = pb.GlobalRule(threshold=0.5)


def automatic(**options: float) -> SitePolicy:
    return SitePolicy.model_validate(
        {"min_rows": 10, "min_events": 2, "min_cell": 5, "egress": "automatic"} | options
    )


def go(bench: Bench, request: pb.Task, data: SiteDataset | None = None) -> tuple[OutboxItem, Work]:
    """Perform a task on some rows and let it pass the gate."""
    rows = bench.dataset() if data is None else data
    prior = bench.prior()
    work = perform(request, bench.terms, rows, prior, None, bench.policy, silent)
    return bench.gate.pass_out(request, bench.terms, work, rows, prior), work


def outcomes(item: OutboxItem) -> dict[str, str]:
    return {check.name: check.outcome for check in item.manifest.checks}


def test_an_answer_waits_for_review_unless_the_policy_says_automatic(tmp_path: Path) -> None:
    item, _ = go(Bench(tmp_path), task(pb.TASK_KIND_FIT, 1))
    assert item.status.state == "waiting_review"
    item, _ = go(Bench(tmp_path, policy=automatic()), task(pb.TASK_KIND_FIT, 2))
    assert item.status.state == "released"


def test_the_answer_is_bound_to_site_terms_and_tensors(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    item, work = go(bench, task(pb.TASK_KIND_FIT, 1, attempt=2))
    answer = item.answer()
    assert (answer.study, answer.task_id, answer.attempt, answer.site) == ("toy", "round-1", 2, "north")
    assert answer.terms_digest == bench.terms.digest
    assert answer_digest(answer) == item.answer_digest
    assert item.tensors_path is not None
    assert item.tensors_path.read_bytes() == work.tensors
    assert answer.tensors_size == len(work.tensors)


def test_the_manifest_names_every_field_and_tensor_and_check(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    item, _ = go(bench, task(pb.TASK_KIND_FIT, 1))
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


KINDS = [
    pb.TASK_KIND_STATISTICS,
    pb.TASK_KIND_INITIALISE,
    pb.TASK_KIND_FIT,
    pb.TASK_KIND_RULE,
    pb.TASK_KIND_EVALUATE,
]


@pytest.mark.parametrize("terms", [terms_of(), terms_of("cox")], ids=["binary", "cox"])
def test_a_planted_identifier_is_in_nothing_that_is_written(tmp_path: Path, terms: StudyTerms) -> None:
    bench = Bench(tmp_path, terms, automatic())
    for kind in KINDS:
        go(bench, task(kind, 1, rule=RULE))
    bench.gate.fail(
        task(pb.TASK_KIND_FIT, 2), bench.terms, DataError("north", (f"row {IDENTIFIER}",), hint=IDENTIFIER)
    )
    assert len(bench.outbox.items("released")) == 6
    written = bench.everything_written()
    assert IDENTIFIER.encode() not in written
    assert b"943-476" not in written


@pytest.mark.parametrize("kind", KINDS)
def test_below_the_floor_of_rows_only_a_failure_leaves_and_no_count(
    tmp_path: Path, kind: pb.TaskKind.ValueType
) -> None:
    bench = Bench(tmp_path)
    tiny = smaller(smaller(bench.dataset(), "train", 6), "validation", 2)
    item, _ = go(bench, task(kind, 1, rule=RULE), tiny)
    answer = item.answer()
    assert answer.failure.code == "data"
    assert not any(character.isdigit() for character in answer.failure.reason)
    assert item.tensors_path is None
    assert item.status.state == "released"
    assert outcomes(item)["floors"] == "refused"


def test_below_the_floor_of_events_only_a_failure_leaves(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    gate = ExitGate("north", automatic(min_events=1000), bench.outbox, bench.clock)
    request = task(pb.TASK_KIND_FIT, 1)
    work = perform(request, bench.terms, bench.dataset(), bench.prior(), None, bench.policy, silent)
    item = gate.pass_out(request, bench.terms, work, bench.dataset(), bench.prior())
    assert item.answer().failure.code == "data"


def test_the_plan_cannot_lower_the_sites_floor(tmp_path: Path) -> None:
    bench = Bench(tmp_path, policy=automatic(min_cell=50))
    assert bench.terms.plan.limits.min_cell == 5
    data = smaller(bench.dataset(), "test", 40)
    item, _ = go(bench, task(pb.TASK_KIND_EVALUATE, rule=RULE), data)
    assert {score.note for score in item.answer().evaluation.scores} == {WITHHELD_NOTE}


@pytest.mark.parametrize("rows", [1, 4])
def test_scores_of_too_few_test_rows_are_withheld(tmp_path: Path, rows: int) -> None:
    bench = Bench(tmp_path)
    item, work = go(bench, task(pb.TASK_KIND_EVALUATE, rule=RULE), smaller(bench.dataset(), "test", rows))
    scores = item.answer().evaluation.scores
    assert isinstance(work.content, pb.EvaluationAnswer)
    assert len(scores) == len(work.content.scores)
    assert not any(score.HasField("value") for score in scores)
    assert {score.note for score in scores} == {WITHHELD_NOTE}
    assert outcomes(item)["test scores"] == "withheld"


@pytest.mark.parametrize("positives", [1, 4])
def test_scores_are_withheld_when_one_class_is_a_small_cell(tmp_path: Path, positives: int) -> None:
    bench = Bench(tmp_path)
    data = bench.dataset()
    data.test.target.fill_(0)
    data.test.target[:positives] = 1
    item, _ = go(bench, task(pb.TASK_KIND_EVALUATE, rule=RULE), data)
    assert not any(score.HasField("value") for score in item.answer().evaluation.scores)


def test_no_event_at_all_is_no_small_cell(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    data = bench.dataset()
    data.test.target.fill_(0)
    item, _ = go(bench, task(pb.TASK_KIND_EVALUATE, rule=RULE), data)
    scores = {score.metric: score for score in item.answer().evaluation.scores}
    assert scores["brier"].HasField("value")
    assert not scores["auroc"].HasField("value")


def test_survival_scores_with_few_events_are_withheld(tmp_path: Path) -> None:
    bench = Bench(tmp_path, terms_of("cox"))
    data = bench.dataset()
    assert data.test.event is not None
    data.test.event.fill_(False)
    data.test.event[:3] = True
    item, _ = go(bench, task(pb.TASK_KIND_EVALUATE, rule=pb.GlobalRule()), data)
    assert {score.note for score in item.answer().evaluation.scores} == {WITHHELD_NOTE}


def test_validation_loss_and_scores_of_few_rows_stay_home_and_the_weight_still_leaves(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    item, work = go(bench, task(pb.TASK_KIND_FIT, 1), smaller(bench.dataset(), "validation", 3))
    assert isinstance(work.content, pb.FitAnswer)
    assert work.content.HasField("validation_loss")
    fit = item.answer().fit
    assert not fit.HasField("validation_loss")
    assert fit.log_omega == work.content.log_omega
    assert {score.note for score in fit.validation_scores} == {WITHHELD_NOTE}


def test_a_threshold_from_few_validation_rows_stays_home(tmp_path: Path) -> None:
    bench = Bench(tmp_path, terms_of(seed=1))  # whose first model tells the classes apart enough for one
    full, _ = go(bench, task(pb.TASK_KIND_RULE))
    assert full.answer().rule.HasField("threshold")
    item, _ = go(bench, task(pb.TASK_KIND_RULE, attempt=2), smaller(bench.dataset(), "validation", 4))
    rule = item.answer().rule
    assert not rule.HasField("threshold")
    assert rule.validation_rows == 0


@pytest.mark.parametrize(("rule", "rounded"), [("youden", True), ("prevalence", False)])
def test_a_threshold_that_is_one_patients_probability_leaves_rounded(
    tmp_path: Path, rule: str, rounded: bool
) -> None:
    bench = Bench(tmp_path, terms_of(rule=rule, seed=1))
    threshold = go(bench, task(pb.TASK_KIND_RULE))[0].answer().rule.threshold
    assert (threshold == round(threshold, 2)) == rounded


def test_notes_lose_their_small_numbers(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    scores = [
        pb.Score(model="global", metric="auroc", note="only 3 rows of 60"),
        pb.Score(model="global", metric="brier", value=0.1, note="60 rows"),
    ]
    request = task(pb.TASK_KIND_EVALUATE, rule=RULE)
    work = Work(pb.EvaluationAnswer(scores=scores))
    answer = bench.gate.pass_out(request, bench.terms, work, bench.dataset(), bench.prior()).answer()
    assert "3" not in answer.evaluation.scores[0].note
    assert answer.evaluation.scores[1].note == "60 rows"


def distance(bench: Bench, item: OutboxItem, prior: PriorFile) -> float:
    assert item.tensors_path is not None
    sent = decode_parameters(model_of(bench.terms.plan).network, item.tensors_path)
    return float((sent.theta - prior.prior.mu).norm())


def test_a_long_step_is_clipped_on_the_way_out_and_the_own_model_stays_exact(tmp_path: Path) -> None:
    bench = Bench(tmp_path, policy=automatic(clip_norm=0.01))
    item, work = go(bench, task(pb.TASK_KIND_FIT, 1))
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
    item, work = go(bench, task(pb.TASK_KIND_FIT, 1))
    mu = bench.prior().prior.mu
    assert work.model is not None
    assert work.model.multiplier is not None
    assert item.tensors_path is not None
    step = work.model.parameters.theta - mu
    assert torch.allclose(work.model.multiplier, step, atol=1e-6), "the first step"
    left = decode_parameters(network, item.tensors_path).theta - mu
    assert torch.allclose(left, 2 * step, atol=1e-6)
    assert "θ_k + u_k" in item.manifest_text(), "the reviewer is told what the vector is"

    bench = Bench(tmp_path / "clipping", terms, automatic(clip_norm=0.01))
    item, clipped = go(bench, task(pb.TASK_KIND_FIT, 1))
    assert outcomes(item)["clip"] == "changed"
    assert distance(bench, item, bench.prior()) == pytest.approx(0.01, rel=1e-3)
    assert clipped.model is not None
    assert clipped.model.multiplier is not None
    assert torch.equal(clipped.model.multiplier, work.model.multiplier), "what is kept stays exact"


def test_a_short_step_is_left_alone_bit_for_bit(tmp_path: Path) -> None:
    bench = Bench(tmp_path, policy=automatic(clip_norm=1e6))
    item, work = go(bench, task(pb.TASK_KIND_FIT, 1))
    assert item.tensors_path is not None
    assert item.tensors_path.read_bytes() == work.tensors
    assert outcomes(item)["clip"] == "passed"


def test_noise_is_added_with_a_secret_seed_and_said_in_the_manifest(tmp_path: Path) -> None:
    network = model_of(terms_of().plan).network
    sent = []
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        bench = Bench(tmp_path / place, policy=automatic(clip_norm=0.5, noise_multiplier=2.0))
        item, work = go(bench, task(pb.TASK_KIND_FIT, 1))
        assert item.tensors_path is not None
        sent.append(decode_parameters(network, item.tensors_path))
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
    item = bench.gate.fail(task(pb.TASK_KIND_FIT, 1), bench.terms, error)
    failure = item.answer().failure
    assert failure.code == "data"
    assert "sbp" not in failure.reason
    assert not any(character.isdigit() for character in failure.reason)
    assert item.status.state == "released"


def test_an_answer_that_is_there_already_is_not_replaced(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    first, _ = go(bench, task(pb.TASK_KIND_FIT, 1))
    again = bench.gate.fail(task(pb.TASK_KIND_FIT, 1), bench.terms, DataError("north", ("x",), hint="y"))
    assert again.answer_digest == first.answer_digest
