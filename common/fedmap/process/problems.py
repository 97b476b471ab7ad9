"""Faults of a plan in plain words: where (`features[3].range`) and what, without the validator's jargon."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError
from pydantic_core import ErrorDetails

_PLAIN = {
    "missing": "is missing",
    "missing_argument": "is missing",
    "missing_keyword_only_argument": "is missing",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "is too large",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "string_type": "must be a text",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "tuple_type": "must be a list",
    "model_type": "must be a table of keys and values",
    "dataclass_type": "must be a table of keys and values",
    "finite_number": "must be a finite number",
}
_LIMITS = {
    "greater_than": ("gt", "must be greater than {:g}"),
    "greater_than_equal": ("ge", "must be at least {:g}"),
    "less_than": ("lt", "must be less than {:g}"),
    "less_than_equal": ("le", "must be at most {:g}"),
    "too_short": ("min_length", "needs at least {:g} entries"),
    "too_long": ("max_length", "takes at most {:g} entries"),
}
_PATTERNS = {
    r"\S": "must not be blank",
    r"^[a-z0-9][a-z0-9-]*$": "must be lower-case letters, digits and hyphens, such as uci-heart",
    r"^[a-z0-9][a-z0-9_-]{0,62}$": "must be at most 63 lower-case letters, digits, - and _",
}
UNKNOWN_KEY = "unknown key"
_UNEXPECTED = {"extra_forbidden", "unexpected_keyword_argument"}
# Follows from another fault of the same section, which is reported on its own.
_CONSEQUENCE = {"default_factory_not_called"}


@dataclass(frozen=True)
class Fault:
    """One thing wrong with a plan."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


def path_of(prefix: str, keys: Sequence[int | str]) -> str:
    """`features` and (3, "range") become `features[3].range`."""
    path = prefix
    for key in keys:
        path += f"[{key}]" if isinstance(key, int) else f".{key}" if path else key
    return path


def unknown_key(key: str, known: Sequence[str]) -> str:
    """Says that a key is unknown, with the likeliest one that was meant."""
    near = difflib.get_close_matches(key, known, n=1)
    return f"{UNKNOWN_KEY}, did you mean `{near[0]}`?" if near else UNKNOWN_KEY


def faults_of(error: ValidationError, prefix: str, known: Sequence[str]) -> list[Fault]:
    """Every fault of one section; `known` are the section's keys."""
    found = [
        Fault(path_of(prefix, detail["loc"]), _text(detail, known))
        for detail in error.errors(include_url=False, include_input=False)
        if detail["type"] not in _CONSEQUENCE
    ]
    # A list with a bad entry is also reported as too short: the entry says enough.
    lists = {fault.path.rpartition("[")[0] for fault in found if fault.path.endswith("]")}
    return [fault for fault in found if fault.path not in lists]


def _text(detail: ErrorDetails, known: Sequence[str]) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _UNEXPECTED:
        return unknown_key(str(detail["loc"][-1]), known if len(detail["loc"]) == 1 else ())
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind in _LIMITS:
        key, words = _LIMITS[kind]
        return words.format(context[key])
    if kind == "literal_error":
        return f"must be {context['expected']}"
    if kind == "string_pattern_mismatch":
        return _PATTERNS.get(context["pattern"], "does not have the right form")
    return detail["msg"].replace("Input should be", "must be")
