"""A study that Flower has run becomes a bundle: its folder in, the release's own path from there on.

Steps: (1) the folder is whole, and its terms and prior are what they say; (2) every answer in it passes the
gate's checks again, since the folder came by a way that we do not know; (3) it becomes a complete study of
that name in the database; (4) `signing` makes and signs the bundle from the run's record. Answers and rounds
are not stored: the folder keeps them.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

from fedmap.algorithm.fit.values import Model
from fedmap.contract.v1.values import Answer, FailureAnswer, GlobalRule
from fedmap.errors import ConflictError, RejectedError
from fedmap.names import check_region
from fedmap.study.answers import MOST_NOTE, rule_of
from fedmap.study.course.state import Member, OpenTask, StudyState, state_to_json
from fedmap.study.models import model_of
from fedmap.study.record import RoundRecord, StudyRecord
from fedmap.study.run_folder import Run, read_run
from fedmap.study.tensors.parameter_files import decode_prior
from fedmap.study.terms import StudyTerms
from fedmap_aggregator.config import AggregatorConfig
from fedmap_aggregator.gate.figures import check_counts, check_inputs
from fedmap_aggregator.gate.headers import GateLimits
from fedmap_aggregator.gate.updates import check_answer, check_failure, check_rows
from fedmap_aggregator.identity.release_key import load_release_key
from fedmap_aggregator.release.signing import BundleRelease, ReleaseOrder
from fedmap_aggregator.store import BundleRow, Store
from fedmap_aggregator.studies.service import Study

ACTOR = "operator"
_MOST_RUNTIME = 100  # characters
_WEIGHTS = 1e-6  # how far from 1 the weights of a round may sum up to
_AGAIN = "Copy the whole folder again from where the study was run; nothing in it may be changed by hand."


@dataclass(frozen=True)
class Imported:
    """What came of an import."""

    bundle: BundleRow
    made: bool  # False: the same bundle was there already
    runtime: str
    file: Path


def import_run(
    folder: Path, config: AggregatorConfig, store: Store, tier: int, expires_at: int | None
) -> Imported:
    """Release the run in `folder`."""
    run = read_run(folder)  # (1)
    record, terms = run.record, run.record.terms
    model = model_of(terms.plan)
    decode_prior(model.network, terms.plan.prior, run.prior, f"the prior in {folder}")
    _check_texts(run)
    _check_rounds(record)
    _check_answers(record, model)  # (2)
    now = time.time_ns() // 1_000_000
    key = load_release_key(config, store, now)
    digest = store.blobs.put(run.prior)  # (3)
    study = Study(terms, model, _state(record, digest, len(run.prior)), 1)
    release = BundleRelease(lambda _: study, store, key, config.release.valid_days, lambda: now)
    with store.transaction() as transaction:
        known = transaction.studies.get(terms.study)
        if known is None:
            transaction.studies.insert(terms.study, terms.to_json(), terms.digest, state_to_json(study.state))
        elif known.terms_digest != terms.digest:
            raise ConflictError(
                f"a study called {terms.study} exists here already, with other terms",
                hint="give the study that runs on Flower another name in its plan, and run it again",
            )
        detail = {"runtime": run.runtime, "prior": digest, "terms": terms.digest}
        transaction.audit.append(ACTOR, "bundle.import", terms.study, detail, now)
    order = ReleaseOrder(terms.study, None, tier, expires_at)
    row, made = release.release(order, ACTOR, record)  # (4)
    return Imported(row, made, run.runtime, store.blobs.existing(row.file_digest))


def _check_texts(run: Run) -> None:
    """Texts that are signed, or shown to people who read the bundle."""
    rule = run.record.rule or GlobalRule()
    _demand(_is_line(run.runtime, _MOST_RUNTIME), "the runtime's name is too long or not printable")
    _demand(_is_line(rule.threshold_note, MOST_NOTE), "the rule's note is too long or not printable")
    rule_of(rule)
    for region in run.record.regions.values():
        check_region(region)
    for one in run.record.refusals:
        check_failure(FailureAnswer(code=one.code))  # the reason stays in the folder


def _is_line(text: str, most: int) -> bool:
    return len(text) <= most and text.isprintable()


def _check_rounds(record: StudyRecord) -> None:
    terms, numbers = record.terms, [one.summary.round for one in record.rounds]
    _demand(numbers == list(range(1, terms.rounds + 1)), "rounds are missing")
    heard: set[str] = set()
    for one in record.rounds:
        _demand(one.weights.keys() <= record.regions.keys(), "a round counts a site that is not listed")
        _check_absent(terms, one, heard)
        heard |= set(one.weights)
        _demand(one.summary.answered >= terms.plan.rounds.quorum, "a round is below the plan's quorum")
        fits = all(weight >= 0 for weight in one.weights.values())
        _demand(fits and math.isclose(sum(one.weights.values()), 1, abs_tol=_WEIGHTS), "weights are not such")


def _check_absent(terms: StudyTerms, one: RoundRecord, heard: set[str]) -> None:
    """Who counts with an earlier update: in consensus rounds only, and only who sent one."""
    _demand(list(one.absent) == sorted(set(one.absent)), "absent sites are not sorted, or listed twice")
    _demand(set(one.absent) <= heard.intersection(one.weights), "an absent site counts that sent nothing")
    consensus = terms.plan.settings.is_consensus(one.summary.round, terms.rounds)
    _demand(consensus or not one.absent, "an absent site counts in a round under the prior")
    _demand(
        not consensus or heard <= set(one.weights), "a consensus round leaves out a site that sent before"
    )


def _check_answers(record: StudyRecord, model: Model) -> None:
    """Each site's answers, judged as on their first arrival."""
    terms = record.terms
    for site, told in record.statistics.items():
        check_inputs(terms.plan, told)
        check_counts(terms.plan, told)
        check_rows(terms.plan, told)
        _demand(told.input_names == record.input_names, f"{site} has other inputs")
    for site, scored in record.evaluations.items():
        answer = Answer(terms.study, "evaluate", 1, site, terms.digest, evaluation=scored)
        task = OpenTask("evaluate", "evaluate", 0, 0, 0, 1, ())
        check_answer(terms, model, task, answer, None, GateLimits(), None)


def _state(record: StudyRecord, prior: str, size: int) -> StudyState:
    terms = record.terms
    return StudyState(
        study=terms.study,
        quorum=terms.plan.rounds.quorum,
        rounds=terms.rounds,
        seed=terms.seed,
        deadline_seconds=terms.plan.rounds.deadline_minutes * 60,
        members={site: Member("approved") for site in record.regions},
        phase="complete",
        rounds_done=terms.rounds,
        prior_digest=prior,
        prior_size=size,
        rule=record.rule,
    )


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RejectedError(f"the run cannot be released: {otherwise}", hint=_AGAIN)
