"""A finished study of another runtime as a folder: what a bundle is made from.

    run.json            terms, rounds, rule, who took part, who was left out, and what each site told
    prior.safetensors   the last prior with its scaler, as `parameter_files` writes it

JSON and safetensors only. Writing is by whoever ran the study; reading is strict and checks the digest of
the prior. Whether the answers in it are possible is asked again by who releases it (`flower_import`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge
from pydantic import ValidationError

from fedmap.errors import IntegrityError, NotFoundError
from fedmap.files.digests import sha256_hex
from fedmap.files.durable import make_folder, read_file, write_durably
from fedmap.names import SiteName
from fedmap.process.settings import Section
from fedmap.shift.reference import Reference

FORMAT = 1
RUN, PRIOR = "run.json", "prior.safetensors"
_AGAIN = "Copy the whole folder again from where the study was run; nothing in it may be changed by hand."


class SiteTold(Section):
    """One site that took part, with its answers in protobuf's JSON form."""

    site: SiteName
    region: str = ""
    statistics: str  # fedmap.v1.StatisticsAnswer
    evaluation: str = ""  # fedmap.v1.EvaluationAnswer; empty: it did not come, or was refused


class RoundTold(Section):
    """One closed round."""

    round: Annotated[int, Ge(1)]
    weights: dict[str, float]  # ω̄ by site
    absent: tuple[str, ...] = ()  # those of them that count with an earlier update
    members: int
    penalty: float
    loss: float | None = None
    validation_loss: float | None = None
    personal_metric: float | None = None
    global_metric: float | None = None
    closed_unix_ms: int = 0


class RefusalTold(Section):
    """One answer that was not used, or did not come."""

    site: str
    task: str
    code: str
    reason: str


class RuleTold(Section):
    """What turns outputs of the final model into decisions."""

    threshold: float | None = None
    threshold_note: str = ""
    baseline_grid: tuple[float, ...] = ()
    baseline_cumulative: tuple[float, ...] = ()


class RunTold(Section):
    """A complete study. There is no such file for one that failed."""

    format: Literal[1] = 1
    runtime: str  # such as flower 1.41.0
    terms: str  # canonical JSON
    terms_digest: str
    prior_digest: str
    input_names: tuple[str, ...]
    sites: tuple[SiteTold, ...]
    rounds: tuple[RoundTold, ...]
    refusals: tuple[RefusalTold, ...] = ()
    rule: RuleTold
    reference: Reference | None = None


def write_run(folder: Path, run: RunTold, prior: bytes) -> None:
    """The prior first: where there is a run.json, the folder is whole."""
    make_folder(folder, mode=0o755)
    write_durably(folder / PRIOR, prior, mode=0o644)
    write_durably(folder / RUN, run.model_dump_json(indent=1).encode() + b"\n", mode=0o644)


def read_run(folder: Path) -> tuple[RunTold, bytes]:
    """The run and its prior's bytes; IntegrityError for anything that `write_run` did not write."""
    if not (folder / RUN).is_file():
        raise NotFoundError(
            f"{folder} holds no {RUN}: the study there is not complete, or this is another folder",
            hint="Give the folder that the Flower run wrote; only a run that ended well leaves one.",
        )
    try:
        run = RunTold.model_validate_json(read_file(folder / RUN))
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"]) or "the whole file"
        raise IntegrityError(
            f"{folder / RUN} cannot be read: {error.error_count()} problem(s), first at {where}", hint=_AGAIN
        ) from None
    prior = read_file(folder / PRIOR)
    if sha256_hex(prior) != run.prior_digest:
        raise IntegrityError(f"{folder / PRIOR} is not the prior of its run", hint=_AGAIN)
    return run, prior
