"""From stored answers to the figures of a release: pooled over sites, suppressed or absent, and said so."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedmap.bundles.manifest import GroupEstimate, TierPerformance
from fedmap.contract.v1 import values
from fedmap.errors import StorageError
from fedmap.scoring.decision_rules import RuleTerms
from fedmap.scoring.meta_analysis import pool_estimates
from fedmap.shift.told.terms import reference_terms
from fedmap.study.answer_names import layout_digest
from fedmap.study.answers import told_terms
from fedmap.study.record import RefusalRecord, StudyRecord
from fedmap.study.tensors.rule_files import encode_rule
from fedmap_aggregator.release.figures import ReleaseFigures, release_figures
from fedmap_aggregator.studies.records import step_of, study_record
from tests.aggregator import small_study as made
from tests.aggregator.centre import Centre, Site, run_until, scripted

NAMES = ["age", "lactate", "ward=b", "ward=c", "free"]
SCALED = (True, True, False, False, True)
SITES = {"north": 0.70, "south": 0.75, "west": 0.85}  # AUROC of the global model


def telling(study: made.Small, task: values.Task, site: str) -> tuple[values.Answer, bytes]:
    """A sound answer with everything that an agent can tell."""
    answer, tensors = scripted(study, task, site)
    place = list(SITES).index(site)
    match task.kind:
        case "statistics":
            hidden = {"lactate"} if site == "west" else set()
            cells = {"age": 10}
            missing = tuple(
                values.MissingCells(name, None if name in hidden else cells.get(name, 0), 50)
                for name in ("age", "lactate", "ward", "free")
            )
            told = values.StatisticsAnswer(
                40, layout_digest(NAMES), tuple(NAMES), missing, events=10 * (1 + place)
            )
            answer = replace(answer, statistics=told)
        case "rule":
            rows = torch.randn(60, 5, generator=torch.Generator().manual_seed(place))
            rule, terms = told_terms(RuleTerms(0.4, 20), reference_terms(rows, SCALED, 10))
            tensors = encode_rule(terms)
            digest = hashlib.sha256(tensors).hexdigest()
            answer = replace(answer, rule=rule, tensors_size=len(tensors), tensors_digest=digest)
        case "evaluate":
            answer = replace(answer, evaluation=_evaluated(site))
    return answer, tensors


def _evaluated(site: str) -> values.EvaluationAnswer:
    value = SITES[site]
    models = (("personal", 0.05), ("global", 0.0), ("fine_tuned", 0.02))
    scores = [values.Score(model, "auroc", value + more, standard_error=0.03) for model, more in models]
    group = values.Score("global", "auroc")
    told = replace(group, value=value - 0.01, standard_error=0.05)
    return values.EvaluationAnswer(
        scores=(*scores, values.Score("global", "brier", note="withheld: below the site's floor")),
        test_rows=100,
        test_events=40,
        calibration=(values.RiskBin(2, 60, 5.0, 20.0, 60), values.RiskBin(7, 40, 18.0, 20.0, 40)),
        subgroups=(
            values.SubgroupScore("ward", "a", 50, told),
            values.SubgroupScore("ward", "b", 40, told if site == "north" else group),
            values.SubgroupScore("ward", "c", None, group),
        ),
    )


def completed(folder: Path, rich: bool = True, regions: tuple[str, ...] = ("east", "east", "west")) -> Centre:
    """A study of three sites, at its end."""
    centre = Centre(folder)
    sites = [centre.enrolled(site) for site in SITES]
    with centre.store.transaction() as transaction:
        for site, region in zip(SITES, regions, strict=True):
            row = transaction.sites.get(site)
            assert row is not None
            transaction.sites.upsert(replace(row, region=region))
    study = centre.started(*sites)
    if not rich:
        run_until(study, "complete", *sites)
        return centre
    for _ in range(100):
        for one in sites:
            _answer(one, study)
        if centre.service.study("small-binary").state.phase == "complete":
            return centre
    raise AssertionError("the study never came to its end")


def _answer(site: Site, study: made.Small) -> None:
    task = site.next_task()
    if task is not None:
        site.submit(*telling(study, task, site.name))


def record(centre: Centre) -> StudyRecord:
    study = centre.service.study("small-binary")
    with centre.store.reading() as transaction:
        return study_record(transaction, study.terms, study.state, blobs=centre.store.blobs)


def figures(centre: Centre, number: int = 2) -> ReleaseFigures:
    return release_figures(record(centre), number)


@pytest.fixture(scope="module")
def over(tmp_path_factory: pytest.TempPathFactory) -> Centre:
    """Only read from."""
    return completed(tmp_path_factory.mktemp("centre"))


def test_a_release_tells_who_trained_and_what_was_missing(over: Centre) -> None:
    found = figures(over)
    assert record(over).input_names == tuple(NAMES)
    assert (found.sites, found.accepted_updates, found.refused) == (3, 6, ())
    data = found.data
    assert data is not None
    assert (data.training_rows, data.training_events) == (120, 60)
    assert (data.test_rows, data.test_events) == (300, 120)
    assert (data.smallest_site, data.largest_site) == (40, 40)
    assert data.regions == ("east", "west")
    assert "rounded" in data.note
    age, lactate, *_ = data.missing
    assert (age.column, age.rule) == ("age", "refuse")
    assert age.share == pytest.approx(30 / 150)
    assert (lactate.share, lactate.note) == (0.0, "a few more, too few to tell, at 1 of 3 sites")


def test_each_tier_has_its_model_pooled_over_sites(over: Centre) -> None:
    found = figures(over)
    by_tier = {one.tier: one for one in found.performance}
    assert [(tier, one.model) for tier, one in by_tier.items()] == [
        (1, "personal"),
        (2, "fine_tuned"),
        (3, "global"),
    ]
    expected = pool_estimates("auroc", list(SITES.values()), [0.03] * 3, elsewhere=True)
    assert by_tier[3].estimates == (expected,)  # nobody let the Brier score go
    assert by_tier[1].estimates[0].value > by_tier[2].estimates[0].value > expected.value
    assert all(one.note for one in found.performance)


def test_calibration_is_one_curve_over_all_sites(over: Centre) -> None:
    found = figures(over)
    assert [one.rows for one in found.calibration] == [180, 120]
    assert [one.observed for one in found.calibration] == pytest.approx([1 / 3, 1 / 2])


def group(found: ReleaseFigures, name: str) -> GroupEstimate:
    (one,) = [one for one in found.groups if one.name == name]
    return one


def test_groups_of_one_site_are_suppressed_and_others_pooled(over: Centre) -> None:
    found = figures(over)
    east, west = group(found, "east"), group(found, "west")
    assert (east.kind, east.rows) == ("region", 200)
    assert east.estimate is not None
    assert (east.estimate.sites, east.estimate.low) == (2, None)
    assert (west.estimate, west.rows) == (None, None)
    assert "suppressed" in west.note
    first, second = group(found, "ward=a"), group(found, "ward=b")
    assert (first.kind, first.rows) == ("subgroup", 150)
    assert first.estimate is not None
    assert first.estimate.sites == 3
    assert (second.estimate, second.rows) == (None, None)
    assert "suppressed" in group(found, "ward=c").note


def test_the_reference_is_pooled_at_the_rule_and_read_back(over: Centre) -> None:
    reference = record(over).reference
    assert reference is not None
    assert (reference.sites, reference.rows) == (3, 180)
    assert [one.name for one in reference.inputs] == NAMES


def test_a_reference_that_went_bad_on_the_disk_is_an_error(tmp_path: Path) -> None:
    centre = completed(tmp_path)
    with centre.store.reading() as transaction:
        results = transaction.results.list("small-binary")
    (digest,) = (step_of(row).reference_digest for row in results if row.task == "rule")
    path = centre.store.blobs.existing(digest)
    path.chmod(0o600)
    path.write_bytes(b"{}")
    with pytest.raises(StorageError, match="reference"):
        figures(centre)


def test_an_earlier_round_has_no_figures_and_says_so(over: Centre) -> None:
    found = figures(over, 1)
    assert found.accepted_updates == 3
    assert found.calibration == ()
    assert found.groups == ()
    assert all(isinstance(one, TierPerformance) and not one.estimates for one in found.performance)
    assert all("not evaluated" in one.note for one in found.performance)
    assert found.data is not None
    assert found.data.test_rows == 0


def test_answers_of_older_agents_are_still_read(tmp_path: Path) -> None:
    centre = completed(tmp_path, rich=False)
    told, found = record(centre), figures(centre)
    assert (told.input_names, told.reference) == ((), None)
    assert found.calibration == ()
    data = found.data
    assert data is not None
    assert (data.training_rows, data.training_events) == (120, None)
    assert all(one.share is None and "not counted" in one.note for one in data.missing)
    by_tier = {one.tier: one for one in found.performance}
    assert by_tier[1].estimates[0].low is None
    assert by_tier[2].note == "not measured: no site let a score go"


def test_refusals_are_counted_by_reason_up_to_the_round(over: Centre) -> None:
    refusals = tuple(
        RefusalRecord("north", task, code, "")
        for task, code in (("round-1", "rejected"), ("round-2", "rejected"), ("evaluate", "data"))
    )
    changed = replace(record(over), refusals=refusals)
    first, last = release_figures(changed, 1), release_figures(changed, 2)
    assert [(one.code, one.count) for one in first.refused] == [("rejected", 1)]
    assert [(one.code, one.count) for one in last.refused] == [("data", 1), ("rejected", 2)]
