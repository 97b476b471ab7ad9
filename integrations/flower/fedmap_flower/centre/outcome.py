"""What a complete run leaves: the folder a release is made from, and the services' tables."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message

from fedmap.contract.v1 import operator_pb2 as pb
from fedmap.files.digests import sha256_hex
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
                statistics=_json(strategy.statistics[site].answer.statistics),
                evaluation=_json(evaluations[site].answer.evaluation) if site in evaluations else "",
            )
            for site, member in sorted(strategy.members.items())
        ),
        rounds=tuple(
            RoundTold(
                round=note.round,
                weights=dict(note.weights),
                absent=note.absent,
                members=note.members,
                penalty=note.penalty,
                loss=note.loss,
                validation_loss=note.validation_loss,
                personal_metric=note.personal_metric,
                global_metric=note.global_metric,
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


def status_of(strategy: FedMAP, run: RunTold) -> pb.StudyStatus:
    """The run as the operator's status would tell it."""
    plan, terms = strategy.terms.plan, strategy.terms
    status = pb.StudyStatus(
        study=terms.study,
        title=plan.study.title,
        phase="complete",
        round=len(run.rounds),
        rounds=terms.rounds,
        terms_digest=terms.digest,
        prior_digest=run.prior_digest,
        metric=plan.task.metric,
        quorum=plan.rounds.quorum,
    )
    for site, member in sorted(strategy.members.items()):
        status.members.add(site=site, region=member.region, membership="approved")
    for note in run.rounds:
        status.history.add(
            round=note.round,
            answered=len(note.weights) - len(note.absent),
            absent=note.absent,
            members=note.members,
            loss=note.loss,
            validation_loss=note.validation_loss,
            penalty=note.penalty,
            largest_weight=max(note.weights.values()),
            personal_metric=note.personal_metric,
            global_metric=note.global_metric,
            closed_unix_ms=note.closed_unix_ms,
        )
    for site, one in sorted(strategy.evaluations.items()):
        for score in one.answer.evaluation.scores:
            told = status.scores.add(site=site, region=one.member.region, model=score.model)
            told.metric, told.note = score.metric, score.note
            if score.HasField("value"):
                told.value = score.value
    for refusal in run.refusals:
        status.refusals.add(site=refusal.site, task_id=refusal.task, code=refusal.code, reason=refusal.reason)
    return status


def _json(message: Message) -> str:
    return MessageToJson(message, indent=None, preserving_proto_field_name=True)
