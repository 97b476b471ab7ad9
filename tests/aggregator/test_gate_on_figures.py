"""The gate on what ends up in a bundle: names, counts, calibration, groups and reference terms."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fedmap.contract import wire
from fedmap.contract.v1 import federation_pb2 as pb
from fedmap.files.tensors import encode_tensors
from fedmap.scoring.decision_rules import RuleTerms
from fedmap.shift.told.terms import ReferenceTerms, reference_terms
from fedmap.study.answer_names import layout_digest
from fedmap.study.answers import told_terms
from fedmap.study.tensors.rule_files import encode_rule
from fedmap_aggregator.gate.updates import CheckedAnswer
from tests.aggregator import small_study as made
from tests.aggregator.at_the_gate import BINARY, SURVIVAL, checked, refused

NAMES = ["age", "lactate", "ward=b", "ward=c", "free"]
SCALED = (True, True, False, False, True)


def statistics(change: Callable[[pb.StatisticsAnswer], None] = lambda _: None) -> CheckedAnswer:
    """A sound answer of 40 rows, with one thing changed."""
    data = made.statistics_bytes(40)
    message = made.answer(BINARY, made.task("statistics"), data)
    sent = message.statistics
    sent.rows, sent.layout_digest, sent.events = 40, layout_digest(NAMES), 20
    sent.input_names.extend(NAMES)
    for feature in ("age", "lactate", "ward", "free"):
        sent.missing.add(feature=feature, cells=10, of=50)
    change(sent)
    return checked(BINARY, "statistics", message, data)


def named(names: list[str]) -> Callable[[pb.StatisticsAnswer], None]:
    def change(sent: pb.StatisticsAnswer) -> None:
        sent.layout_digest = layout_digest(names)
        del sent.input_names[:]
        sent.input_names.extend(names)

    return change


def test_sound_counts_and_names_are_let_in() -> None:
    assert statistics().status == "accepted"


def test_an_older_agent_that_sends_neither_is_let_in() -> None:
    def change(sent: pb.StatisticsAnswer) -> None:
        del sent.input_names[:], sent.missing[:]
        sent.ClearField("events")

    assert statistics(change).status == "accepted"


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (NAMES[:-1], "more or fewer inputs"),
        ([*NAMES[:-1], "age"], "same name"),
        (["aged", *NAMES[1:]], "not those of the plan"),
        ([NAMES[0], NAMES[1], "ward=c", "ward=b", "free"], "not those of the plan"),
        ([*NAMES[:-1], "free\x1b[2J"], "unprintable"),
        ([*NAMES[:-1], "f" * 201], "over 200"),
    ],
)
def test_names_that_the_plan_does_not_have_are_refused(names: list[str], reason: str) -> None:
    with refused(reason):
        statistics(named(names))


def test_names_that_the_digest_does_not_cover_are_refused() -> None:
    with refused("another digest"):
        statistics(lambda sent: setattr(sent, "layout_digest", made.LAYOUT))


def without_last(sent: pb.StatisticsAnswer) -> None:
    del sent.missing[-1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda sent: setattr(sent, "events", 41), "more events than rows"),
        (lambda sent: setattr(sent, "events", 3), "below the plan's floor"),
        (lambda sent: setattr(sent.missing[0], "cells", 51), "more cells are empty"),
        (lambda sent: setattr(sent.missing[0], "cells", 3), "below the plan's floor"),
        (lambda sent: setattr(sent.missing[0], "feature", "lactate"), "by the plan's features"),
        (without_last, "by the plan's features"),
    ],
)
def test_impossible_or_small_counts_are_refused(
    change: Callable[[pb.StatisticsAnswer], None], reason: str
) -> None:
    with refused(reason):
        statistics(change)


def evaluation(change: Callable[[pb.EvaluationAnswer], None] = lambda _: None) -> CheckedAnswer:
    message = made.answer(BINARY, made.task("evaluate"))
    sent = message.evaluation
    sent.test_rows, sent.test_events = 100, 40
    for model in ("personal", "global", "fine_tuned"):
        sent.scores.add(model=model, metric="auroc", value=0.8, standard_error=0.03)
    sent.calibration.add(bin=2, rows=50, predicted=4.0, observed=15.0, effective_rows=50)
    sent.calibration.add(bin=7, rows=50, predicted=22.0, observed=25.0, effective_rows=50)
    for category, rows in (("a", 60), ("b", 40)):
        score = pb.Score(model="global", metric="auroc", value=0.7, standard_error=0.1)
        sent.subgroups.add(column="ward", category=category, rows=rows, score=score)
    change(sent)
    return checked(BINARY, "evaluate", message, b"")


def test_sound_figures_are_let_in() -> None:
    assert evaluation().status == "accepted"


def test_an_older_agents_plain_scores_are_let_in() -> None:
    message = made.answer(BINARY, made.task("evaluate"))
    message.evaluation.scores.add(model="global", metric="auroc", value=0.8)
    assert checked(BINARY, "evaluate", message, b"").status == "accepted"


def twice(sent: pb.EvaluationAnswer) -> None:
    sent.subgroups[1].category = "a"


def backwards(sent: pb.EvaluationAnswer) -> None:
    sent.calibration[0].bin, sent.calibration[1].bin = 7, 2


def uncounted(sent: pb.EvaluationAnswer) -> None:
    sent.ClearField("test_rows")
    sent.ClearField("test_events")


def hidden(sent: pb.EvaluationAnswer) -> None:
    sent.subgroups[0].ClearField("rows")


def valueless(sent: pb.EvaluationAnswer) -> None:
    sent.scores[0].ClearField("value")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda sent: setattr(sent, "test_rows", 7), "below the plan's floor"),
        (lambda sent: setattr(sent, "test_events", 101), "more test events than rows"),
        (lambda sent: setattr(sent, "test_events", 2), "below the plan's floor"),
        (uncounted, "not counted"),
        (lambda sent: setattr(sent.calibration[0], "bin", 99), "do not rise|beyond the grid"),
        (lambda sent: setattr(sent.calibration[1], "bin", 99), "beyond the grid"),
        (backwards, "do not rise"),
        (lambda sent: setattr(sent.calibration[0], "rows", 51), "more rows than there are"),
        (lambda sent: setattr(sent.calibration[0], "rows", 3), "below the plan's floor"),
        (lambda sent: setattr(sent.calibration[0], "rows", 0), "no rows"),
        (lambda sent: setattr(sent.calibration[0], "predicted", 40.0), "lies elsewhere"),
        (lambda sent: setattr(sent.calibration[0], "predicted", float("nan")), "not finite"),
        (lambda sent: setattr(sent.calibration[0], "observed", 51.0), "more events than rows"),
        (lambda sent: setattr(sent.calibration[0], "observed", 2.0), "below the plan's floor"),
        (lambda sent: setattr(sent.calibration[0], "observed", 49.0), "below the plan's floor"),
        (lambda sent: setattr(sent.calibration[0], "effective_rows", 0.0), "effective rows"),
        (lambda sent: setattr(sent.calibration[0], "effective_rows", 1e9), "effective rows"),
        (twice, "scored twice"),
        (lambda sent: setattr(sent.subgroups[0], "column", "<script>"), "none of the plan's categories"),
        (lambda sent: setattr(sent.subgroups[0], "category", "z"), "none of the plan's categories"),
        (lambda sent: setattr(sent.subgroups[0], "rows", 4), "below the plan's floor"),
        (lambda sent: setattr(sent.subgroups[0], "rows", 61), "groups hold more rows"),
        (hidden, "score without rows"),
        (lambda sent: setattr(sent.subgroups[0].score, "metric", "brier"), "another metric"),
        (lambda sent: setattr(sent.subgroups[0].score, "model", "personal"), "does not score"),
        (lambda sent: setattr(sent.subgroups[0].score, "value", float("inf")), "not a finite number"),
        (lambda sent: setattr(sent.scores[0], "standard_error", -0.1), "standard error"),
        (lambda sent: setattr(sent.scores[0], "standard_error", float("nan")), "standard error"),
        (lambda sent: setattr(sent.scores[0], "standard_error", 1e9), "standard error"),
        (valueless, "error without a value"),
        (lambda sent: setattr(sent.scores[0], "model", "global"), "scored twice"),
    ],
)
def test_impossible_figures_are_refused(change: Callable[[pb.EvaluationAnswer], None], reason: str) -> None:
    with refused(reason):
        evaluation(change)


def test_a_fit_does_not_score_a_fine_tuned_model() -> None:
    data = made.fit_bytes(BINARY)
    message = made.answer(BINARY, made.task("fit"), data)
    message.fit.log_omega = -0.5
    message.fit.validation_scores.add(model="fine_tuned", metric="auroc", value=0.8)
    with refused("does not score"):
        checked(BINARY, "fit", message, data)


def terms(floor: int = 10, inputs: int = 5) -> ReferenceTerms:
    rows = torch.randn(60, inputs, generator=torch.Generator().manual_seed(1))
    return reference_terms(rows, SCALED[:inputs], floor)


def rule(reference: ReferenceTerms | None, data: bytes | None = None, flag: bool = True) -> CheckedAnswer:
    told, tensors = told_terms(RuleTerms(0.4, 40), reference)
    content = pb.RuleAnswer.FromString(wire.write(told))
    sent = encode_rule(tensors) if data is None else data
    message = made.answer(BINARY, made.task("rule"), sent)
    content.reference = flag
    message.rule.CopyFrom(content)
    return checked(BINARY, "rule", message, sent)


def test_sound_reference_terms_are_let_in_also_beside_a_baseline() -> None:
    assert rule(terms()).status == "accepted"
    own = reference_terms(torch.randn(60, 1), (True,), 10)
    told, tensors = told_terms(RuleTerms(baseline=made.baseline()), own)
    content, data = pb.RuleAnswer.FromString(wire.write(told)), encode_rule(tensors)
    message = made.answer(SURVIVAL, made.task("rule"), data)
    message.rule.CopyFrom(content)
    assert checked(SURVIVAL, "rule", message, data).status == "accepted"


def test_reference_terms_below_the_plans_floor_are_refused() -> None:
    with refused("lower floor"):
        rule(terms(floor=3))


def test_reference_terms_of_other_inputs_are_refused() -> None:
    with refused("bytes|shape"):
        rule(terms(inputs=4))
    with refused("other inputs"):
        rule(reference_terms(torch.randn(60, 5), (True,) * 5, 10))


def test_reference_terms_that_no_rows_have_are_refused() -> None:
    sound = vars(terms())
    counts = sound["counts"].clone()
    counts[0, 5] += 7
    with refused("counts do not add up|below the floor"):
        rule(ReferenceTerms(**sound | {"counts": counts}))
    with refused("symmetric|no rows"):
        rule(ReferenceTerms(**sound | {"joint_scatter": -sound["joint_scatter"]}))


def test_tensors_that_the_message_does_not_announce_are_refused() -> None:
    with refused("bytes"):
        rule(terms(), flag=False)
    with refused("missing"):
        rule(None, b"")
    with refused("bytes|lacks"):
        rule(None, encode_tensors({"reference.rows": torch.zeros((), dtype=torch.float64)}))
