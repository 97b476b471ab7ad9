"""The kinds of outcome that a study predicts: what the plan's task, its metrics and its models agree on."""

from typing import Literal

OutcomeKind = Literal["binary", "multiclass", "cox"]
