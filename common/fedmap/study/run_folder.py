"""A finished study of another runtime as a folder: what a bundle is made from.

    run.json            the study's record: terms, rounds, rule, who took part, and what each site told
    prior.safetensors   the last prior with its scaler, as `parameter_files` writes it

JSON and safetensors only. Writing is by whoever ran the study; reading is strict and checks the digest of
the prior. Whether the answers in it are possible is asked again by who releases it (`flower_import`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from annotated_types import Ge
from pydantic import ValidationError

from fedmap.contract import wire
from fedmap.contract.v1.values import EvaluationAnswer, GlobalRule, StatisticsAnswer
from fedmap.errors import IntegrityError, NotFoundError, RejectedError
from fedmap.files.digests import sha256_hex
from fedmap.files.durable import make_folder, read_file, write_durably
from fedmap.names import SiteName
from fedmap.process.settings import Section
from fedmap.shift.reference import Reference
from fedmap.study.record import RefusalRecord, RoundRecord, RoundSummary, StudyRecord
from fedmap.study.terms import parse_terms

RUN, PRIOR = "run.json", "prior.safetensors"
_AGAIN = "Copy the whole folder again from where the study was run; nothing in it may be changed by hand."
_Answer = TypeVar("_Answer", StatisticsAnswer, EvaluationAnswer)


@dataclass(frozen=True)
class Run:
    """A complete study. There is no folder of one that failed."""

    runtime: str  # such as flower 1.41.0
    record: StudyRecord
    prior: bytes


class _Site(Section):
    """One site that took part, with its answers in protobuf's JSON form."""

    site: SiteName
    region: str = ""
    statistics: str  # fedmap.v1.StatisticsAnswer
    evaluation: str = ""  # fedmap.v1.EvaluationAnswer; empty: it did not come, or was refused


class _Round(Section):
    round: Annotated[int, Ge(1)]
    weights: dict[str, float]
    absent: tuple[str, ...] = ()
    members: int
    penalty: float
    loss: float | None = None
    validation_loss: float | None = None
    personal_metric: float | None = None
    global_metric: float | None = None
    closed_unix_ms: int = 0


class _Refusal(Section):
    site: str
    task: str
    code: str
    reason: str


class _Rule(Section):
    threshold: float | None = None
    threshold_note: str = ""
    baseline_grid: tuple[float, ...] = ()
    baseline_cumulative: tuple[float, ...] = ()


class _RunFile(Section):
    format: Literal[1] = 1
    runtime: str
    terms: str  # canonical JSON
    terms_digest: str
    prior_digest: str
    input_names: tuple[str, ...]
    sites: tuple[_Site, ...]
    rounds: tuple[_Round, ...]
    refusals: tuple[_Refusal, ...] = ()
    rule: _Rule
    reference: Reference | None = None


def write_run(folder: Path, run: Run) -> None:
    """The prior first: where there is a run.json, the folder is whole."""
    make_folder(folder, mode=0o755)
    write_durably(folder / PRIOR, run.prior, mode=0o644)
    write_durably(folder / RUN, _file(run).model_dump_json(indent=1).encode() + b"\n", mode=0o644)


def read_run(folder: Path) -> Run:
    """The run; IntegrityError for anything that `write_run` did not write."""
    if not (folder / RUN).is_file():
        raise NotFoundError(
            f"{folder} holds no {RUN}: the study there is not complete, or this is another folder",
            hint="Give the folder that the Flower run wrote; only a run that ended well leaves one.",
        )
    try:
        file = _RunFile.model_validate_json(read_file(folder / RUN))
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"]) or "the whole file"
        raise IntegrityError(
            f"{folder / RUN} cannot be read: {error.error_count()} problem(s), first at {where}", hint=_AGAIN
        ) from None
    prior = read_file(folder / PRIOR)
    if sha256_hex(prior) != file.prior_digest:
        raise IntegrityError(f"{folder / PRIOR} is not the prior of its run", hint=_AGAIN)
    return Run(file.runtime, _record(file, folder / RUN), prior)


def _file(run: Run) -> _RunFile:
    record, terms = run.record, run.record.terms
    return _RunFile(
        runtime=run.runtime,
        terms=terms.to_json(),
        terms_digest=terms.digest,
        prior_digest=sha256_hex(run.prior),
        input_names=record.input_names,
        sites=tuple(
            _Site(
                site=site,
                region=record.regions[site],
                statistics=wire.write_json(told),
                evaluation=wire.write_json(record.evaluations[site]) if site in record.evaluations else "",
            )
            for site, told in sorted(record.statistics.items())
        ),
        rounds=tuple(
            _Round(
                weights=dict(one.weights),
                absent=one.absent,
                closed_unix_ms=one.closed_unix_ms,
                **{name: told for name, told in vars(one.summary).items() if name in _Round.model_fields},
            )
            for one in record.rounds
        ),
        refusals=tuple(
            _Refusal(site=one.site, task=one.task, code=one.code, reason=one.reason)
            for one in record.refusals
        ),
        rule=_Rule(**vars(record.rule or GlobalRule())),
        reference=record.reference,
    )


def _record(file: _RunFile, path: Path) -> StudyRecord:
    terms = parse_terms(file.terms, f"{path}: terms")
    if terms.digest != file.terms_digest:
        raise _not_released("the terms have another digest")
    if len({one.site for one in file.sites}) < len(file.sites):
        raise _not_released("a site is listed twice")
    last = len(file.rounds)
    return StudyRecord(
        terms=terms,
        regions={one.site: one.region for one in file.sites},
        input_names=file.input_names,
        statistics={one.site: _answer(StatisticsAnswer, one.statistics, one.site) for one in file.sites},
        rounds=tuple(_round(one, file.prior_digest if one.round == last else "") for one in file.rounds),
        rule=GlobalRule(**dict(file.rule)),
        reference=file.reference,
        evaluations={
            one.site: _answer(EvaluationAnswer, one.evaluation, one.site)
            for one in file.sites
            if one.evaluation
        },
        refusals=tuple(RefusalRecord(**dict(one)) for one in file.refusals),
    )


def _round(one: _Round, prior_digest: str) -> RoundRecord:
    summary = RoundSummary(
        round=one.round,
        answered=len(one.weights) - len(one.absent),
        members=one.members,
        penalty=one.penalty,
        largest_weight=max(one.weights.values(), default=0.0),
        loss=one.loss,
        validation_loss=one.validation_loss,
        personal_metric=one.personal_metric,
        global_metric=one.global_metric,
    )
    return RoundRecord(one.weights, one.absent, summary, one.closed_unix_ms, prior_digest)


def _answer(kind: type[_Answer], text: str, site: str) -> _Answer:
    try:
        return wire.read_json(kind, text)
    except RejectedError:
        raise IntegrityError(f"an answer of {site} cannot be read", hint=_AGAIN) from None


def _not_released(why: str) -> RejectedError:
    return RejectedError(f"the run cannot be released: {why}", hint=_AGAIN)
