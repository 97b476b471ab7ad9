"""What a site tells besides parameters: counts, calibration, groups and reference, without small cells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedmap.algorithm.fit.round import OwnModel
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.contract.v1.values import (
    EvaluationAnswer,
    GlobalRule,
    MissingCells,
    RiskBin,
    RuleAnswer,
    Score,
    StatisticsAnswer,
    SubgroupScore,
)
from fedmap.data.table.site_dataset import MissingCount, SiteDataset
from fedmap.errors import ModelError
from fedmap.scoring.disclosure import rounded_count
from fedmap.shift.told.terms import reference_terms
from fedmap.study.answer_names import layout_digest
from fedmap.study.answers import Work
from fedmap.study.answers import terms_of as terms_told_by
from fedmap.study.terms import StudyTerms
from fedmap_site.policy import SitePolicy
from tests.site_agent.stages import Bench, said, smaller, task, terms_of

RULE = GlobalRule(threshold=0.5)
GRID = tuple(0.5 * step for step in range(1, 11))
HAZARD = GlobalRule(baseline_grid=GRID, baseline_cumulative=tuple(0.1 * time for time in GRID))
POLICY = SitePolicy(min_rows=10, min_events=2, min_cell=5, egress="automatic")


def evaluated(bench: Bench, data: SiteDataset | None = None) -> EvaluationAnswer:
    rule = RULE if bench.terms.plan.task.kind == "binary" else HAZARD
    return said(bench.go(task("evaluate", rule=rule), data)[0], EvaluationAnswer)


def test_counts_are_rounded_and_small_ones_stay_home() -> None:
    assert [rounded_count(n, 10) for n in (0, 1, 9, 10, 14, 15, 24, 25)] == [
        0,
        None,
        None,
        10,
        10,
        20,
        20,
        30,
    ]


def test_the_inputs_are_named_and_their_digest_is_that_of_the_names(tmp_path: Path) -> None:
    bench = Bench(tmp_path, policy=POLICY)
    item, _ = bench.go(task("statistics"))
    sent = said(item, StatisticsAnswer)
    assert list(sent.input_names) == ["a", "b", "smoking=yes"]
    assert sent.layout_digest == layout_digest(sent.input_names)
    assert "statistics.input_names[2] = smoking=yes" in item.manifest_text()


def test_events_and_empty_cells_leave_rounded_or_not_at_all(tmp_path: Path) -> None:
    bench = Bench(tmp_path, policy=POLICY)
    data = replace(
        bench.dataset(),
        missing=(MissingCount("a", 3, 303), MissingCount("b", 0, 303), MissingCount("smoking", 68, 303)),
    )
    sent = said(bench.go(task("statistics"), data)[0], StatisticsAnswer)
    told = [(one.feature, one.cells, one.of) for one in sent.missing]
    assert told == [("a", None, 305), ("b", 0, 305), ("smoking", 70, 305)]
    exact = int((data.train.target == 1).sum() + (data.validation.target == 1).sum())
    assert sent.events is not None
    assert sent.events % 5 == 0
    assert abs(sent.events - exact) <= 2


@pytest.mark.parametrize("events", [3, -3])
def test_few_rows_with_or_without_an_event_are_not_counted(tmp_path: Path, events: int) -> None:
    plan = terms_of().plan
    plan = plan.model_copy(update={"limits": plan.limits.model_copy(update={"min_events": 0})})
    bench = Bench(tmp_path, replace(terms_of(), plan=plan), POLICY.model_copy(update={"min_events": 0}))
    data, prior = bench.dataset(), bench.prior()
    for part in (data.train, data.validation):
        part.target.fill_(int(events < 0))
    data.train.target[: abs(events)] = int(events > 0)
    work = bench.work(task("statistics"), data, prior)
    assert said(work, StatisticsAnswer).events is None
    assert "few rows with or without an event: their count not sent" in work.notes


@pytest.mark.parametrize("terms", [terms_of(), terms_of("cox")], ids=["binary", "cox"])
def test_reference_terms_travel_with_those_of_the_rule(tmp_path: Path, terms: StudyTerms) -> None:
    bench = Bench(tmp_path, terms, POLICY)
    item, work = bench.go(task("rule"))
    sent = said(item, RuleAnswer)
    assert sent.reference
    rule, reference = terms_told_by(terms.plan, sent, item.tensors_path)
    assert (rule.baseline is not None) == (terms.plan.task.kind == "cox")
    data, scaler = bench.dataset(), bench.prior().scaler
    rows = torch.cat([data.train.features, data.validation.features])
    expected = reference_terms(scaler.apply(rows), data.layout.scaled, 5)
    assert reference is not None
    assert all(torch.equal(getattr(reference, name), value) for name, value in vars(expected).items())
    assert "reference.counts" in item.manifest_text()
    assert work.tensors


def test_reference_terms_made_for_a_lower_floor_do_not_pass(tmp_path: Path) -> None:
    bench = Bench(tmp_path, policy=POLICY)
    request = task("rule")
    work = bench.work(request)
    strict = Bench(tmp_path, policy=POLICY.model_copy(update={"min_cell": 20}))
    with pytest.raises(ModelError, match="lower floor"):
        strict.gate.pass_out(request, bench.terms, work, bench.dataset(), bench.prior())


@pytest.mark.parametrize("terms", [terms_of(), terms_of("cox")], ids=["binary", "cox"])
def test_all_three_models_are_scored_with_errors(tmp_path: Path, terms: StudyTerms) -> None:
    bench = Bench(tmp_path, terms, POLICY)
    prior = bench.prior()
    own = OwnModel(SiteParameters(prior.prior.mu, prior.prior.buffers))
    request = task("evaluate", rule=RULE if terms.plan.task.kind == "binary" else HAZARD)
    seen: list[tuple[str, float]] = []
    work = bench.work(request, None, prior, own, lambda stage, share: seen.append((stage, share)))
    scores = said(work, EvaluationAnswer).scores
    assert {score.model for score in scores if score.value is not None} == {
        "personal",
        "global",
        "fine_tuned",
    }
    for score in scores:
        assert (score.standard_error is None) == (score.value is None), score
    shares = [share for _, share in seen]
    assert shares == sorted(shares)
    assert 0.3 < max(shares) <= 1


@pytest.mark.parametrize("terms", [terms_of(), terms_of("cox")], ids=["binary", "cox"])
def test_calibration_and_groups_leave_without_small_cells(tmp_path: Path, terms: StudyTerms) -> None:
    bench = Bench(tmp_path, terms, POLICY)
    sent = evaluated(bench)
    test = bench.dataset().test
    assert sent.test_rows == len(test)
    events = test.target == 1 if test.event is None else test.event
    assert sent.test_events == int(events.sum())
    assert sum(one.rows for one in sent.calibration) == len(test)
    assert all(one.rows >= 5 for one in sent.calibration)
    assert [(group.column, group.category) for group in sent.subgroups] == [
        ("smoking", "no"),
        ("smoking", "yes"),
    ]
    assert sum(group.rows or 0 for group in sent.subgroups) == len(test)
    assert {group.score and group.score.metric for group in sent.subgroups} == {terms.plan.task.metric}


def test_a_small_test_part_tells_nothing_at_all(tmp_path: Path) -> None:
    bench = Bench(tmp_path, policy=POLICY)
    sent = evaluated(bench, smaller(bench.dataset(), "test", 4))
    assert {(score.value, score.standard_error) for score in sent.scores} == {(None, None)}
    assert sent == EvaluationAnswer(sent.scores)


def test_a_group_of_few_rows_cannot_be_worked_out_from_the_other(tmp_path: Path) -> None:
    bench = Bench(tmp_path, policy=POLICY)
    data = bench.dataset()
    data.test.features[:, 2] = 0.0
    data.test.features[:3, 2] = 1.0
    item, _ = bench.go(task("evaluate", rule=RULE), data)
    groups = said(item, EvaluationAnswer).subgroups
    assert {(group.rows, group.score and group.score.value) for group in groups} == {(None, None)}
    assert any("left out" in check.text for check in item.manifest.checks)


TAMPERED = {
    "bin": EvaluationAnswer(test_rows=60, calibration=(RiskBin(3, 4, 0.5, 0.0, 4),)),
    "bin events": EvaluationAnswer(test_rows=60, calibration=(RiskBin(3, 40, 5.0, 2.0, 40),)),
    "bin others": EvaluationAnswer(test_rows=60, calibration=(RiskBin(3, 40, 5.0, 38.0, 40),)),
    "group": EvaluationAnswer(test_rows=60, subgroups=(SubgroupScore("smoking", "no", 3),)),
    "remainder": EvaluationAnswer(test_rows=60, subgroups=(SubgroupScore("smoking", "no", 58),)),
    "hidden": EvaluationAnswer(
        test_rows=60, subgroups=(SubgroupScore("smoking", "no", None, Score(value=0.7)),)
    ),
    "rows": EvaluationAnswer(test_rows=57),
    "events": EvaluationAnswer(test_rows=60, test_events=2),
    "others": EvaluationAnswer(test_rows=60, test_events=58),
    "a count of events": StatisticsAnswer(rows=240, events=7),
    "few without an event": StatisticsAnswer(rows=240, events=238),
    "empty cells": StatisticsAnswer(rows=240, missing=(MissingCells("a", 3),)),
    "all cells": StatisticsAnswer(rows=240, missing=(MissingCells("a", None, 303),)),
}


@pytest.mark.parametrize("content", TAMPERED.values(), ids=TAMPERED)
def test_a_defect_that_would_show_a_small_cell_or_a_count_not_rounded_stops_the_whole_answer(
    tmp_path: Path, content: EvaluationAnswer | StatisticsAnswer
) -> None:
    bench = Bench(tmp_path, policy=POLICY)
    assert len(bench.dataset().test) == 60
    request = task("evaluate" if isinstance(content, EvaluationAnswer) else "statistics", rule=RULE)
    with pytest.raises(ModelError, match="would give away"):
        bench.gate.pass_out(request, bench.terms, Work(content), bench.dataset(), None)
    assert not bench.outbox.items()
