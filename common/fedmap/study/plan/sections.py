"""The sections of a study plan, each a frozen model whose fields carry their own bounds.

What one field may hold is said here; what two fields may not say together is in `contradictions`. The
sections training, prior and aggregation are the algorithm's own settings classes, used as they are.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from fedmap.outcomes import OutcomeKind
from fedmap.study.plan.values import Scalar, Text

Share = Annotated[float, Gt(0), Lt(1)]
Count = Annotated[int, Ge(1)]
Seed = Annotated[int, Ge(0), Le(2**32 - 1)]

_DROPOUT = {"cprd_survival": 0.1, "interval_iron": 0.1, "eicu_mortality": 0.3, "mlp": 0.1, "linear": 0.0}
_GRID_STEPS = 10


class Section(BaseModel):
    """Frozen, strict about types, no unknown keys, no infinities."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class StudySection(Section):
    """What the study is called and what its model is for."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    title: Text
    intended_use: str = ""


class PositiveRule(Section):
    """Which values of a numeric label count as positive: above a limit, or below one."""

    above: float | None = None
    below: float | None = None


class ThresholdRule(Section):
    """How the decision threshold of a binary task is found (on validation data)."""

    rule: Literal["fixed", "prevalence", "youden", "sensitivity"]
    value: Share | None = None


# The factories below see the fields read so far; pydantic types that as a dict of anything.
def _default_threshold(read: dict[str, Any]) -> ThresholdRule | None:
    return ThresholdRule(rule="fixed", value=0.5) if read["kind"] == "binary" else None


def _default_grid(read: dict[str, Any]) -> tuple[float, ...]:
    horizon = read["horizon"]
    if read["kind"] != "cox" or horizon is None:
        return ()
    return tuple(horizon * step / _GRID_STEPS for step in range(1, _GRID_STEPS + 1))


class TaskSection(Section):
    """What is predicted, and how it is judged."""

    kind: OutcomeKind
    metric: Text
    label: Text | None = None
    positive: PositiveRule | None = None
    classes: tuple[Scalar, ...] = ()
    """In the order of the class indices; of two, the second is the positive one."""
    threshold: ThresholdRule | None = Field(default_factory=_default_threshold)
    """Binary only, where it is 0.5 unless the plan says otherwise."""
    time: Text | None = None
    event: Text | None = None
    time_unit: Literal["days", "weeks", "months", "years"] | None = None
    horizon: Annotated[float, Gt(0)] | None = None
    grid: tuple[Annotated[float, Gt(0)], ...] = Field(default_factory=_default_grid)
    """Times of the baseline hazard, the last one the horizon; survival only, ten equal steps by default."""


class DataSection(Section):
    """The shape of the sites' files."""

    format: Literal["table", "cprd", "interval", "eicu"] = "table"
    patient: Text | None = None
    repeated_patients: Literal["refuse", "allow"] = "refuse"
    exclude_nonpositive_time: bool = False
    """Survival tables: rows whose time is zero or less are a recorded exclusion, not an error."""


class SplitSection(Section):
    """How rows are divided into training, validation and test parts."""

    test: Share = 0.2
    validation: Share = 0.2
    """Share of the training part kept for early stopping and thresholds."""
    column: Text | None = None
    train_value: Scalar | None = None
    test_value: Scalar | None = None
    seed: Seed = 0


def _default_dropout(read: dict[str, Any]) -> float:
    return _DROPOUT[read["name"]]


class ModelSection(Section):
    """A name in the model registry and its options."""

    name: Literal["cprd_survival", "interval_iron", "eicu_mortality", "mlp", "linear"]
    hidden: Annotated[tuple[Count, ...], MinLen(1)] = (64, 32)
    """mlp only."""
    dropout: Annotated[float, Ge(0), Lt(1)] = Field(default_factory=_default_dropout)
    """Not for linear."""
    batch_norm: bool = False
    """mlp only; the paper's networks have or lack it by design."""


class RoundsSection(Section):
    """How long the federation runs and what closes a round."""

    count: Count = 50
    evaluate_every: Count = 5
    quorum: Count = 2
    deadline_minutes: Annotated[float, Gt(0)] = 120.0


class LimitsSection(Section):
    """Least counts: for taking part (rows, events) and for disclosure (cells)."""

    min_rows: Count = 50
    """Per site, in the training part with its validation share."""
    min_events: Annotated[int, Ge(0)] = 5
    """Per site; fewer is noted, and the site still trains."""
    min_cell: Count = 10


class ScalingSection(Section):
    """Whether features are standardised with the federation's statistics or the site's own."""

    mode: Literal["pooled", "local"] = "pooled"
