"""What jobs leave, and what a comparison is made of: records without a word of how they come about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from fedmap_lab.comparison.request import Identity, Request
from fedmap_lab.federation.sites import Federation

Kind = Literal["trial", "run"]
Outcome = Literal["done", "undefined", "diverged"]
Setting = Mapping[str, float]
"""Hyperparameters by name; those that are not named keep their default."""


class Record(BaseModel):
    """A part of a finished job, as it is kept on disk."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class CalibrationRecord(Record):
    """One bin of one tier's curve."""

    tier: int
    model: Literal["personal", "global"]
    rows: int
    predicted: float  # mean
    observed: float  # share; for survival Kaplan and Meier's risk at the plan's horizon
    low: float  # 95 % interval of the observed
    high: float


class SubgroupRecord(Record):
    """The plan's metric in one category at one site."""

    tier: int
    site: str
    column: str
    category: str
    value: float | None  # None: withheld or not measurable


class Job(Record):
    """What to train. Equal jobs give equal results, whoever runs them."""

    kind: Kind
    method: str
    seed: int
    trial: int = 0  # 0 for a run
    setting: Mapping[str, float] = {}
    rounds: int

    @property
    def key(self) -> str:
        """The name of its record."""
        return f"{self.kind}-{self.method}-{self.seed}-{self.trial}"


class ScoreRecord(Record):
    tier: int
    site: str
    region: str
    model: Literal["personal", "global"]
    metric: str
    value: float | None
    note: str  # why there is no value, or how it departs from the metric's definition


class RoundNumbers(Record):
    round: int
    loss: float | None
    penalty: float | None
    convex_penalty: float | None
    validation_loss: float | None
    largest_weight: float | None
    personal: float | None  # the plan's metric on validation rows, median over T1; where it was looked at
    shared: float | None


class Weight(Record):
    round: int
    site: str
    weight: float


class SiteFailure(Record):
    round: int
    site: str
    reason: str


class JobResult(Record):
    """What a job leaves."""

    job: Job
    outcome: Outcome
    reason: str = ""
    seconds: float = 0.0
    validation: float | None = None  # the plan's metric on validation rows, median over T1
    scores: tuple[ScoreRecord, ...] = ()
    rounds: tuple[RoundNumbers, ...] = ()
    weights: tuple[Weight, ...] = ()
    failed: tuple[SiteFailure, ...] = ()
    calibration: tuple[CalibrationRecord, ...] = ()
    subgroups: tuple[SubgroupRecord, ...] = ()
    models: Mapping[str, bytes] = Field(default={}, exclude=True)  # files of the first seed's models


@dataclass(frozen=True)
class Crash:
    """A job whose process ended under it, for example for want of memory."""

    job: Job
    exit_code: int | None


@dataclass(frozen=True)
class Comparison:
    """Everything that was found out, in the order of methods and seeds."""

    request: Request
    identity: Identity
    federation: Federation
    chosen: Mapping[str, Setting]
    trials: tuple[JobResult, ...]
    runs: tuple[JobResult, ...]
    crashes: tuple[Crash, ...]
    unasked: tuple[tuple[str, int], ...] = ()  # method and seed of recorded runs that were not asked for
