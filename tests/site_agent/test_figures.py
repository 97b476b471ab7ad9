"""What a site tells besides parameters: counts, calibration, groups and reference, without small cells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedmap.algorithm.fit.round import OwnModel
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.contract import wire
from fedmap.contract.v1 import federation_pb2 as pb
from fedmap.contract.v1 import values
from fedmap.data.table.site_dataset import MissingCount, SiteDataset
from fedmap.errors import ModelError
from fedmap.scoring.disclosure import rounded_count
from fedmap.shift.told.terms import reference_terms
from fedmap.study.answer_names import layout_digest
from fedmap.study.answers import terms_of as terms_told_by
from fedmap.study.terms import StudyTerms
from fedmap_site.exit.item import OutboxItem
from fedmap_site.policy import SitePolicy
from fedmap_site.work.trainer import Work, perform
from tests.site_agent.stages import Bench, silent, smaller, task, terms_of

RULE = pb.GlobalRule(threshold=0.5)
GRID = [0.5 * step for step in range(1, 11)]
HAZARD = pb.GlobalRule(baseline_grid=GRID, baseline_cumulative=[0.1 * time for time in GRID])
POLICY = SitePolicy(min_rows=10, min_events=2, min_cell=5, egress="automatic")


def go(bench: Bench, request: pb.Task, data: SiteDataset | None = None) -> tuple[OutboxItem, Work]:
    rows = bench.dataset() if data is None else data
    work = perform(request, bench.terms, rows, bench.prior(), None, bench.policy, silent)
    return bench.gate.pass_out(request, bench.terms, work, rows, bench.prior()), work


def evaluated(bench: Bench, data: SiteDataset | None = None) -> pb.EvaluationAnswer:
    rule = RULE if bench.terms.plan.task.kind == "binary" else HAZARD
    return go(bench, task(pb.TASK_KIND_EVALUATE, rule=rule), data)[0].answer().evaluation


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
    item, _ = go(bench, task(pb.TASK_KIND_STATISTICS))
    sent = item.answer().statistics
    assert list(sent.input_names) == ["a", "b", "smoking=yes"]
    assert sent.layout_digest == layout_digest(sent.input_names)
    assert "statistics.input_names[2] = smoking=yes" in item.manifest_text()


def test_events_and_empty_cells_leave_rounded_or_not_at_all(tmp_path: Path) -> None:
    bench = Bench(tmp_path, policy=POLICY)
    data = replace(
        bench.dataset(),
        missing=(MissingCount("a", 3, 303), MissingCount("b", 0, 303), MissingCount("smoking", 68, 303)),
    )
    sent = go(bench, task(pb.TASK_KIND_STATISTICS), data)[0].answer().statistics
    told = [(one.feature, one.cells if one.HasField("cells") else None, one.of) for one in sent.missing]
    assert told == [("a", None, 305), ("b", 0, 305), ("smoking", 70, 305)]
    exact = int((data.train.target == 1).sum() + (data.validation.target == 1).sum())
    assert sent.events % 5 == 0
    assert abs(sent.events - exact) <= 2


@pytest.mark.parametrize("events", [3, -3])
def test_few_rows_with_or_without_an_event_are_not_counted(tmp_path: Path, events: int) -> None:
    bench = Bench(tmp_path, policy=SitePolicy(min_rows=10, min_events=0, min_cell=5, egress="automatic"))
    terms = replace(
        bench.terms,
        plan=bench.terms.plan.model_copy(
            update={"limits": bench.terms.plan.limits.model_copy(update={"min_events": 0})}
        ),
    )
    data = bench.dataset()
    for part in (data.train, data.validation):
        part.target.fill_(int(events < 0))
    data.train.target[: abs(events)] = int(events > 0)
    request = task(pb.TASK_KIND_STATISTICS)
    work = perform(request, terms, data, None, None, bench.policy, silent)
    assert isinstance(work.content, pb.StatisticsAnswer)
    assert not work.content.HasField("events")
    assert "few rows with or without an event: their count not sent" in work.notes


@pytest.mark.parametrize("terms", [terms_of(), terms_of("cox")], ids=["binary", "cox"])
def test_reference_terms_travel_with_those_of_the_rule(tmp_path: Path, terms: StudyTerms) -> None:
    bench = Bench(tmp_path, terms, POLICY)
    item, work = go(bench, task(pb.TASK_KIND_RULE))
    sent = item.answer().rule
    assert sent.reference
    told = wire.value_of(values.RuleAnswer, sent)
    rule, reference = terms_told_by(terms.plan, told, item.tensors_path)
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
    request = task(pb.TASK_KIND_RULE)
    work = perform(request, bench.terms, bench.dataset(), bench.prior(), None, bench.policy, silent)
    strict = Bench(tmp_path, policy=POLICY.model_copy(update={"min_cell": 20}))
    with pytest.raises(ModelError, match="lower floor"):
        strict.gate.pass_out(request, bench.terms, work, bench.dataset(), bench.prior())


@pytest.mark.parametrize("terms", [terms_of(), terms_of("cox")], ids=["binary", "cox"])
def test_all_three_models_are_scored_with_errors(tmp_path: Path, terms: StudyTerms) -> None:
    bench = Bench(tmp_path, terms, POLICY)
    prior = bench.prior()
    own = OwnModel(SiteParameters(prior.prior.mu, prior.prior.buffers))
    request = task(pb.TASK_KIND_EVALUATE, rule=RULE if terms.plan.task.kind == "binary" else HAZARD)
    seen: list[tuple[str, float]] = []
    work = perform(
        request,
        terms,
        bench.dataset(),
        prior,
        own,
        bench.policy,
        lambda stage, share: seen.append((stage, share)),
    )
    assert isinstance(work.content, pb.EvaluationAnswer)
    by_model = {score.model for score in work.content.scores if score.HasField("value")}
    assert by_model == {"personal", "global", "fine_tuned"}
    for score in work.content.scores:
        assert score.HasField("standard_error") == score.HasField("value"), score
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
    assert sum(group.rows for group in sent.subgroups) == len(test)
    assert all(group.score.metric == terms.plan.task.metric for group in sent.subgroups)


def test_a_small_test_part_tells_nothing_at_all(tmp_path: Path) -> None:
    bench = Bench(tmp_path, policy=POLICY)
    sent = evaluated(bench, smaller(bench.dataset(), "test", 4))
    assert not any(score.HasField("value") or score.HasField("standard_error") for score in sent.scores)
    assert not sent.HasField("test_rows")
    assert not sent.HasField("test_events")
    assert not sent.calibration
    assert not sent.subgroups


def test_a_group_of_few_rows_cannot_be_worked_out_from_the_other(tmp_path: Path) -> None:
    bench = Bench(tmp_path, policy=POLICY)
    data = bench.dataset()
    data.test.features[:, 2] = 0.0
    data.test.features[:3, 2] = 1.0
    item, _ = go(bench, task(pb.TASK_KIND_EVALUATE, rule=RULE), data)
    sent = item.answer().evaluation
    assert not any(group.HasField("rows") for group in sent.subgroups)
    assert not any(group.score.HasField("value") for group in sent.subgroups)
    assert any("left out" in check.text for check in item.manifest.checks)


def tampered(change: str) -> pb.EvaluationAnswer:
    answer = pb.EvaluationAnswer(test_rows=60)
    match change:
        case "bin":
            answer.calibration.add(bin=3, rows=4, predicted=0.5, observed=0.0, effective_rows=4)
        case "bin events":
            answer.calibration.add(bin=3, rows=40, predicted=5.0, observed=2.0, effective_rows=40)
        case "bin others":
            answer.calibration.add(bin=3, rows=40, predicted=5.0, observed=38.0, effective_rows=40)
        case "group":
            answer.subgroups.add(column="smoking", category="no", rows=3)
        case "remainder":
            answer.subgroups.add(column="smoking", category="no", rows=58)
        case "hidden":
            answer.subgroups.add(column="smoking", category="no", score=pb.Score(value=0.7))
        case "rows":
            answer.test_rows = 57
        case "events":
            answer.test_events = 2
        case "others":
            answer.test_events = 58
    return answer


@pytest.mark.parametrize(
    "change", ["bin", "bin events", "bin others", "group", "remainder", "hidden", "rows", "events", "others"]
)
def test_a_defect_that_would_show_a_small_cell_stops_the_whole_answer(tmp_path: Path, change: str) -> None:
    bench = Bench(tmp_path, policy=POLICY)
    assert len(bench.dataset().test) == 60
    request = task(pb.TASK_KIND_EVALUATE, rule=RULE)
    with pytest.raises(ModelError, match="would give away"):
        bench.gate.pass_out(request, bench.terms, Work(tampered(change)), bench.dataset(), None)
    assert not bench.outbox.items()


@pytest.mark.parametrize("counts", [{"events": 7}, {"events": 238}, {"cells": 3}, {"of": 303}])
def test_a_count_that_was_not_rounded_stops_the_whole_answer(tmp_path: Path, counts: dict[str, int]) -> None:
    bench = Bench(tmp_path, policy=POLICY)
    content = pb.StatisticsAnswer(rows=240)
    if "events" in counts:
        content.events = counts["events"]
    else:
        content.missing.add(feature="a", **counts)
    with pytest.raises(ModelError, match="would give away"):
        bench.gate.pass_out(task(pb.TASK_KIND_STATISTICS), bench.terms, Work(content), bench.dataset(), None)
