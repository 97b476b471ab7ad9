"""What answers are known by: the models that are scored, the code of a withheld one, and the inputs' digest.

No tensors here: a command that only looks at an outbox or a status does not wait for torch. What answers hold
is in `answers`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from fedmap.contract.v1 import values

PERSONAL, GLOBAL, FINE_TUNED = "personal", "global", "fine_tuned"
MODELS = (PERSONAL, GLOBAL, FINE_TUNED)
WITHHELD = "withheld"
"""The code of a failure in place of an answer that the site's reviewer did not release."""

_PLACES: Mapping[type, str] = MappingProxyType(
    {
        values.StatisticsAnswer: "statistics",
        values.InitialModelAnswer: "initial_model",
        values.FitAnswer: "fit",
        values.RuleAnswer: "rule",
        values.EvaluationAnswer: "evaluation",
        values.FailureAnswer: "failure",
    }
)


def with_content(answer: values.Answer, content: object) -> values.Answer:
    """The same answer, holding that."""
    placed: dict[str, Any] = {_PLACES[type(content)]: content}
    return replace(answer, **placed)


def content_name(answer: values.Answer) -> str:
    """What the answer holds, in a word; empty where it is empty."""
    return next((name for name in _PLACES.values() if getattr(answer, name) is not None), "")


def layout_digest(names: Sequence[str]) -> str:
    """SHA-256 over the names of the model's inputs, in order: equal where columns mean the same."""
    return hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()
