"""How values that mean the same are compared: 0, 0.0 and "0" are one category, and so are true and 1.

Used for the plan's own lists and for the cells of a file, so that both sides agree. It never guesses further:
"M" and "m" stay two values.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, StringConstraints
from pydantic_core import PydanticCustomError

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_WORDS = {"true": "1", "false": "0"}


def canonical_text(value: object) -> str:
    """The one spelling under which equal values meet."""
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
