"""What a plan says about its input columns: one column each, or a block of columns that share a prefix.

Only the description lives here; `fedmap.data.features` reads, checks and encodes the columns of a file.
"""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge
from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from fedmap.study.plan.sections import Section
from fedmap.study.plan.values import Scalar, Text

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
