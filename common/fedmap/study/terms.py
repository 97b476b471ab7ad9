"""What a site approves: the study plan with the number of rounds and the seed, under one digest.

Both sides compute the digest from the canonical JSON themselves; neither takes the other's word for it.
Who takes part and how far the study is are not among the terms.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import NoReturn

from fedmap.errors import PlanError
from fedmap.study.plan.canonical import Json, canonical_form, plan_of
from fedmap.study.plan.study_plan import StudyPlan

FORMAT = 1
MOST_ROUNDS = 100_000
_KEYS = {"format", "plan", "rounds", "seed"}
_HINT = "Ask the operator for the study's terms again; both sides must run compatible versions."


@dataclass(frozen=True)
class StudyTerms:
    """Everything that fixes a study's result, but for the data."""

    plan: StudyPlan
    rounds: int
    seed: int

    def __post_init__(self) -> None:
        problems = []
        if not 1 <= self.rounds <= MOST_ROUNDS:
            problems.append(f"rounds: must be from 1 to {MOST_ROUNDS:,}")
        if not 0 <= self.seed < 2**64:
            problems.append("seed: must be a whole number from 0 to 2^64 - 1")
        if problems:
            raise PlanError(self.study, tuple(problems), hint="Give other --rounds or --seed.")

    @classmethod
    def of_plan(cls, plan: StudyPlan, rounds: int | None = None, seed: int = 0) -> StudyTerms:
        """The terms of a plan; the plan's own number of rounds unless another is given."""
        return cls(plan, plan.rounds.count if rounds is None else rounds, seed)

    @property
    def study(self) -> str:
        return self.plan.study.name

    def to_json(self) -> str:
        """Canonical: sorted keys, no spaces, every field spelt out."""
        form = {
            "format": FORMAT,
            "plan": canonical_form(self.plan),
            "rounds": self.rounds,
            "seed": self.seed,
        }
        return json.dumps(form, sort_keys=True, separators=(",", ":"))

    @property
    def digest(self) -> str:
        """SHA-256 over the canonical JSON, hex."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def parse_terms(text: str, source: str = "study terms") -> StudyTerms:
    """Reads canonical terms; any other text, even one that means the same, is a `PlanError`."""
    try:
        form: Json = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise PlanError(source, ("the terms are not readable as JSON",), hint=_HINT) from None
    if not isinstance(form, dict) or set(form) != _KEYS:
        raise PlanError(source, (f"the terms must hold {', '.join(sorted(_KEYS))}",), hint=_HINT)
    plan, rounds, seed = form["plan"], form["rounds"], form["seed"]
    if form["format"] != FORMAT:
        raise PlanError(source, (f"the terms are not of format {FORMAT}",), hint=_HINT)
    if not isinstance(plan, dict) or type(rounds) is not int or type(seed) is not int:
        raise PlanError(source, ("plan must be a table, rounds and seed must be whole numbers",), hint=_HINT)
    terms = StudyTerms(plan_of(plan, source), rounds, seed)
    if terms.to_json() != text:
        raise PlanError(source, ("the terms are not in their canonical form",), hint=_HINT)
    return terms


def _refuse_constant(_: str) -> NoReturn:
    raise ValueError("not a finite number")
