"""A study that Flower has run becomes a bundle: its folder in, the release's own path from there on.

Steps: (1) the folder is whole, and its terms and prior are what they say; (2) every answer in it passes the
gate's checks again, since the folder came by a way that we do not know; (3) it becomes the records that a
study of our own would have left, with a complete study of that name in the database; (4) `signing`
makes and signs the bundle. Answers and rounds are not stored: the folder keeps them.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from fedmap.contract import wire
from fedmap.contract.v1.values import (
    Answer,
    EvaluationAnswer,
    FailureAnswer,
    GlobalRule,
    StatisticsAnswer,
)
from fedmap.errors import ConflictError, IntegrityError, RejectedError
from fedmap.files.digests import sha256_hex
from fedmap.names import check_region
from fedmap.study.answers import MOST_NOTE, rule_of
from fedmap.study.course.state import Member, OpenTask, StudyState, state_to_json
from fedmap.study.models import model_of
from fedmap.study.run_folder import RoundTold, RunTold, SiteTold, read_run
from fedmap.study.tensors.parameter_files import decode_prior
from fedmap.study.terms import StudyTerms, parse_terms
from fedmap_aggregator.config import AggregatorConfig
from fedmap_aggregator.course.computation import StepResult, step_to_json
from fedmap_aggregator.gate.figures import check_counts, check_inputs
from fedmap_aggregator.gate.headers import GateLimits
from fedmap_aggregator.gate.updates import check_answer, check_failure, check_rows
from fedmap_aggregator.identity.release_key import load_release_key
from fedmap_aggregator.release.figures import ReleaseRecords
from fedmap_aggregator.release.signing import BundleRelease, ReleaseOrder
from fedmap_aggregator.store import AnswerRow, BundleRow, RefusalRow, ResultRow, Store
from fedmap_aggregator.studies.service import Study

ACTOR = "operator"
_MOST_RUNTIME = 100  # characters
_WEIGHTS = 1e-6  # how far from 1 the weights of a round may sum up to
_AGAIN = "Copy the whole folder again from where the study was run; nothing in it may be changed by hand."
_Answer = TypeVar("_Answer", StatisticsAnswer, EvaluationAnswer)


@dataclass(frozen=True)
class Imported:
    """What came of an import."""

    bundle: BundleRow
    made: bool  # False: the same bundle was there already
    runtime: str
    file: Path


@dataclass(frozen=True)
class _OneStudy:
    """`bundle_release.Studies` with the imported study alone."""

    imported: Study

    def study(self, name: str) -> Study:  # noqa: ARG002 - there is no other
        return self.imported


def import_run(
    folder: Path, config: AggregatorConfig, store: Store, tier: int, expires_at: int | None
) -> Imported:
    """Release the run in `folder`."""
    run, prior = read_run(folder)  # (1)
    terms = parse_terms(run.terms, f"{folder / 'run.json'}: terms")
    model = model_of(terms.plan)
    _demand(terms.digest == run.terms_digest, "the terms have another digest")
    decode_prior(model.network, terms.plan.prior, prior, f"the prior in {folder}")
    _check_texts(run)
    _check_rounds(terms, run)
    evaluations = _check_sites(terms, run)  # (2)
    now = time.time_ns() // 1_000_000
    key = load_release_key(config, store, now)
    records = _records(terms, run, evaluations, store, store.blobs.put(prior), now)  # (3)
    study = Study(terms, model, _state(terms, run, len(prior)), 1)
    release = BundleRelease(_OneStudy(study), store, key, config.release.valid_days, lambda: now)
    with store.transaction() as transaction:
        known = transaction.studies.get(terms.study)
        if known is None:
            transaction.studies.insert(terms.study, run.terms, terms.digest, state_to_json(study.state))
        elif known.terms_digest != terms.digest:
            raise ConflictError(
                f"a study called {terms.study} exists here already, with other terms",
                hint="give the study that runs on Flower another name in its plan, and run it again",
            )
        detail = {"runtime": run.runtime, "prior": run.prior_digest, "terms": run.terms_digest}
        transaction.audit.append(ACTOR, "bundle.import", terms.study, detail, now)
    order = ReleaseOrder(terms.study, None, tier, expires_at)
    row, made = release.release(order, ACTOR, records)  # (4)
    return Imported(row, made, run.runtime, store.blobs.existing(row.file_digest))


def _check_texts(run: RunTold) -> None:
    """Texts that are signed, or shown to people who read the bundle."""
    _demand(_is_line(run.runtime, _MOST_RUNTIME), "the runtime's name is too long or not printable")
    _demand(_is_line(run.rule.threshold_note, MOST_NOTE), "the rule's note is too long or not printable")
    for told in run.sites:
        check_region(told.region)
    for one in run.refusals:
        check_failure(FailureAnswer(code=one.code))  # the reason stays in the folder


def _is_line(text: str, most: int) -> bool:
    return len(text) <= most and text.isprintable()


def _check_rounds(terms: StudyTerms, run: RunTold) -> None:
    _demand([one.round for one in run.rounds] == list(range(1, terms.rounds + 1)), "rounds are missing")
    sites = {one.site for one in run.sites}
    _demand(len(sites) == len(run.sites), "a site is listed twice")
    heard: set[str] = set()
    for one in run.rounds:
        _demand(set(one.weights) <= sites, "a round counts a site that is not listed")
        _check_absent(terms, one, heard)
        heard |= set(one.weights)
        answered = len(one.weights) - len(one.absent)
        _demand(answered >= terms.plan.rounds.quorum, "a round is below the plan's quorum")
        fits = all(weight >= 0 for weight in one.weights.values())
        _demand(fits and math.isclose(sum(one.weights.values()), 1, abs_tol=_WEIGHTS), "weights are not such")


def _check_absent(terms: StudyTerms, one: RoundTold, heard: set[str]) -> None:
    """Who counts with an earlier update: in consensus rounds only, and only who sent one."""
    _demand(list(one.absent) == sorted(set(one.absent)), "absent sites are not sorted, or listed twice")
    _demand(set(one.absent) <= heard.intersection(one.weights), "an absent site counts that sent nothing")
    consensus = terms.plan.settings.is_consensus(one.round, terms.rounds)
    _demand(consensus or not one.absent, "an absent site counts in a round under the prior")
    _demand(
        not consensus or heard <= set(one.weights), "a consensus round leaves out a site that sent before"
    )


def _check_sites(terms: StudyTerms, run: RunTold) -> dict[str, Answer]:
    """Each site's answers, judged as on their first arrival; the evaluations, as answers."""
    plan, model, found = terms.plan, model_of(terms.plan), {}
    rule_of(_rule(run))
    for told in run.sites:
        statistics = _read(told.statistics, StatisticsAnswer, told)
        check_inputs(plan, statistics)
        check_counts(plan, statistics)
        check_rows(plan, statistics)
        _demand(statistics.input_names == run.input_names, f"{told.site} has other inputs")
        if told.evaluation:
            evaluation = _read(told.evaluation, EvaluationAnswer, told)
            answer = replace(_answer(terms, told.site, "evaluate"), evaluation=evaluation)
            task = OpenTask("evaluate", "evaluate", 0, 0, 0, 1, ())
            check_answer(terms, model, task, answer, None, GateLimits(), None)
            found[told.site] = answer
    return found


def _records(
    terms: StudyTerms, run: RunTold, evaluations: dict[str, Answer], store: Store, prior: str, now: int
) -> ReleaseRecords:
    study = terms.study
    statistics = []
    for told in run.sites:
        found = _read(told.statistics, StatisticsAnswer, told)
        statistics.append(_row(replace(_answer(terms, told.site, "statistics"), statistics=found), now))
    reference = "" if run.reference is None else store.blobs.put(run.reference.model_dump_json().encode())
    results = [ResultRow(study, "statistics", "", step_to_json(StepResult(input_names=run.input_names)), now)]
    for one in run.rounds:
        made = prior if one.round == terms.rounds else ""
        step = StepResult(weights=one.weights, absent=one.absent)
        results.append(ResultRow(study, f"round-{one.round}", made, step_to_json(step), now))
    results.append(ResultRow(study, "rule", "", step_to_json(StepResult(reference_digest=reference)), now))
    return ReleaseRecords(
        statistics=tuple(statistics),
        evaluations=tuple(_row(answer, now) for answer in evaluations.values()),
        results=tuple(results),
        refusals=tuple(
            RefusalRow(study, one.task, one.site, one.code, one.reason, now) for one in run.refusals
        ),
        regions={told.site: told.region for told in run.sites},
    )


def _state(terms: StudyTerms, run: RunTold, size: int) -> StudyState:
    return StudyState(
        study=terms.study,
        quorum=terms.plan.rounds.quorum,
        rounds=terms.rounds,
        seed=terms.seed,
        deadline_seconds=terms.plan.rounds.deadline_minutes * 60,
        members={told.site: Member("approved") for told in run.sites},
        phase="complete",
        rounds_done=terms.rounds,
        prior_digest=run.prior_digest,
        prior_size=size,
        rule=_rule(run),
    )


def _rule(run: RunTold) -> GlobalRule:
    rule = run.rule
    return GlobalRule(rule.threshold, rule.threshold_note, rule.baseline_grid, rule.baseline_cumulative)


def _answer(terms: StudyTerms, site: str, task: str) -> Answer:
    return Answer(study=terms.study, task_id=task, attempt=1, site=site, terms_digest=terms.digest)


def _row(answer: Answer, now: int) -> AnswerRow:
    data = wire.write(answer)
    return AnswerRow(
        answer.study,
        answer.task_id,
        answer.site,
        1,
        sha256_hex(data),
        "accepted",
        data,
        "",
        None,
        "",
        now,
    )


def _read(text: str, kind: type[_Answer], told: SiteTold) -> _Answer:
    try:
        return wire.read_json(kind, text)
    except RejectedError:
        raise IntegrityError(f"an answer of {told.site} cannot be read", hint=_AGAIN) from None


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RejectedError(f"the run cannot be released: {otherwise}", hint=_AGAIN)
