"""The sections of a study plan, each a frozen model whose fields carry their own bounds.

What one field may hold is said here; what two fields may not say together is in `contradictions`. The
sections training, prior and aggregation are the algorithm's own settings classes, used as they are.
Input columns are only described: `fedmap.data.features` reads, checks and encodes those of a file.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

from fedmap.outcomes import OutcomeKind

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_WORDS = {"true": "1", "false": "0"}


def canonical_text(value: object) -> str:
    """The one spelling under which equal values meet: 0, 0.0 and "0" are one category, and so are true and 1.

    Used for the plan's own lists and for the cells of a file. It never guesses further: "M" and "m" stay two.
    """
    text = str(value).strip()
    if _NUMBER.fullmatch(text):
        number = float(text)
        if number.is_integer() and abs(number) < 1e15:
            return str(int(number))
        return repr(number)
    return _WORDS.get(text.lower(), text)


def _scalar_as_text(value: object) -> object:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, int | float):
        return canonical_text(value)
    if isinstance(value, str):
        return value
    raise PydanticCustomError("scalar", "must be a text or a number")


Text = Annotated[str, StringConstraints(pattern=r"\S")]
"""Text that is not blank: names of columns, titles."""

Scalar = Annotated[Text, BeforeValidator(_scalar_as_text)]
"""A category or class of the plan; TOML may give it as text or as a number."""


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


Range = tuple[float, float]


class MissingRule(Section):
    """What becomes of an empty cell: an error, a recorded exclusion of its row, or a fixed value."""

    action: Literal["refuse", "exclude", "fill"] = "refuse"
    fill: float | str | None = None


def _as_missing_rule(value: object) -> MissingRule:
    match value:
        case MissingRule():
            return value
        case "refuse":
            return MissingRule(action="refuse")
        case "exclude":
            return MissingRule(action="exclude")
        case {"fill": str() | int() | float() as fill, **rest} if not rest and not isinstance(fill, bool):
            return MissingRule(action="fill", fill=fill if isinstance(fill, str) else float(fill))
    raise PydanticCustomError("missing_rule", 'must be "refuse", "exclude" or { fill = value }')


Missing = Annotated[MissingRule, BeforeValidator(_as_missing_rule)]


class _NumberOptions(Section):
    """Options that columns and blocks share."""

    unit: Text | None = None
    range: Range | None = None
    """Inclusive. A value outside is refused: a unit wrong by ten shows up here."""
    missing: Missing = MissingRule()
    transform: Literal["none", "log1p"] = "none"
    scale: bool = True
    group: str = ""
    """The tower of a multi-modal model; empty for none."""


class FeatureColumn(_NumberOptions):
    """One column: a number, or a category with a closed set of values."""

    name: Text
    kind: Literal["number", "category"]
    categories: tuple[Scalar, ...] = ()
    """The first is the reference; each other one becomes a 0/1 input."""


class FeatureBlock(_NumberOptions):
    """All columns whose names start with `prefix`, in order of their names; `columns` of them."""

    prefix: Text
    columns: Annotated[int, Ge(1)]
    kind: Literal["number"]


Feature = FeatureColumn | FeatureBlock
