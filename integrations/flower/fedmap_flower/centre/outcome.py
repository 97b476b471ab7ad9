"""What a complete run leaves: the folder a release is made from, and the services' tables."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from fedmap.contract.v1.values import EvaluationAnswer, MemberStatus, StatisticsAnswer
from fedmap.files.digests import sha256_hex
from fedmap.study.answers import content_as, told_rule
from fedmap.study.record import StudyRecord, status_of
from fedmap.study.run_folder import Run, write_run
from fedmap_aggregator.operator.results import write_results
from fedmap_flower.centre.strategy import FedMAP

TABLES = "tables"
_T1 = 1


def write_outcome(out: Path, strategy: FedMAP) -> None:
    """The tables first: where there is a run.json, everything is there."""
    record = record_of(strategy)
    status = replace(
        status_of(record),
        phase="complete",
        round=len(record.rounds),
        prior_digest=sha256_hex(strategy.prior),
        members=tuple(
            MemberStatus(site=site, region=region, membership="approved")
            for site, region in record.regions.items()
        ),
    )
    write_results(status, dict.fromkeys(record.regions, _T1), out / TABLES)
    write_run(out, Run(f"flower {version('flwr')}", record, strategy.prior))


def record_of(strategy: FedMAP) -> StudyRecord:
    """The run, as a release and the tables read it."""
    return StudyRecord(
        terms=strategy.terms,
        regions={site: member.region for site, member in sorted(strategy.members.items())},
        input_names=strategy.input_names,
        statistics={
            site: content_as(StatisticsAnswer, one.answer) for site, one in strategy.statistics.items()
        },
        rounds=tuple(strategy.rounds),
        rule=told_rule(strategy.rule),
        reference=strategy.reference,
        evaluations={
            site: content_as(EvaluationAnswer, one.answer) for site, one in strategy.evaluations.items()
        },
        refusals=tuple(strategy.refused),
    )
