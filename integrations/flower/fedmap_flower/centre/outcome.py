"""What a complete run leaves: the folder a release is made from, and the services' tables."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from fedmap.contract import wire
from fedmap.contract.v1.values import (
    EvaluationAnswer,
    MemberStatus,
    Refusal,
    RoundStatus,
    SiteScore,
    StatisticsAnswer,
    StudyStatus,
)
from fedmap.files.digests import sha256_hex
from fedmap.study.answers import content_as
from fedmap.study.run_folder import RefusalTold, RoundTold, RuleTold, RunTold, SiteTold, write_run
from fedmap_aggregator.operator.results import write_results
from fedmap_flower.centre.strategy import FedMAP

TABLES = "tables"
_T1 = 1


def write_outcome(out: Path, strategy: FedMAP) -> None:
    """The tables first: where there is a run.json, everything is there."""
    run = run_told(strategy)
    write_results(status_of(strategy, run), dict.fromkeys(strategy.members, _T1), out / TABLES)
    write_run(out, run, strategy.prior)


def run_told(strategy: FedMAP) -> RunTold:
    rule, terms = strategy.rule, strategy.terms
    evaluations = strategy.evaluations
    return RunTold(
        runtime=f"flower {version('flwr')}",
        terms=terms.to_json(),
        terms_digest=terms.digest,
        prior_digest=sha256_hex(strategy.prior),
        input_names=strategy.input_names,
        sites=tuple(
            SiteTold(
                site=site,
                region=member.region,
                statistics=wire.write_json(content_as(StatisticsAnswer, strategy.statistics[site].answer)),
                evaluation=wire.write_json(content_as(EvaluationAnswer, evaluations[site].answer))
                if site in evaluations
                else "",
            )
            for site, member in sorted(strategy.members.items())
        ),
        rounds=tuple(
            RoundTold(
                round=note.summary.round,
                weights=dict(note.weights),
                absent=note.absent,
                members=note.summary.members,
                penalty=note.summary.penalty,
                loss=note.summary.loss,
                validation_loss=note.summary.validation_loss,
                personal_metric=note.summary.personal_metric,
                global_metric=note.summary.global_metric,
                closed_unix_ms=note.closed_unix_ms,
            )
            for note in strategy.rounds
        ),
        refusals=tuple(
            RefusalTold(site=one.site, task=one.task, code=one.code, reason=one.reason)
            for one in strategy.refused
        ),
        rule=RuleTold(
            threshold=None if rule.threshold is None else rule.threshold.value,
            threshold_note="" if rule.threshold is None else rule.threshold.note or "",
            baseline_grid=() if rule.baseline is None else rule.baseline.grid,
            baseline_cumulative=() if rule.baseline is None else tuple(rule.baseline.cumulative.tolist()),
        ),
        reference=strategy.reference,
    )


def status_of(strategy: FedMAP, run: RunTold) -> StudyStatus:
    """The run as the operator's status would tell it."""
    plan, terms = strategy.terms.plan, strategy.terms
    return StudyStatus(
        study=terms.study,
        title=plan.study.title,
        phase="complete",
        round=len(run.rounds),
        rounds=terms.rounds,
        terms_digest=terms.digest,
        prior_digest=run.prior_digest,
        metric=plan.task.metric,
        quorum=plan.rounds.quorum,
        members=tuple(
            MemberStatus(site=site, region=member.region, membership="approved")
            for site, member in sorted(strategy.members.items())
        ),
        history=tuple(
            RoundStatus(**vars(note.summary), absent=note.absent, closed_unix_ms=note.closed_unix_ms)
            for note in strategy.rounds
        ),
        scores=tuple(
            SiteScore(site, one.member.region, score.model, score.metric, score.value, score.note)
            for site, one in sorted(strategy.evaluations.items())
            for score in content_as(EvaluationAnswer, one.answer).scores
        ),
        refusals=tuple(Refusal(one.site, one.task, one.code, one.reason) for one in run.refusals),
    )
