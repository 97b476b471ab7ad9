"""The site's own policy: a TOML file that the hospital writes and nobody else can lower.

A floor is whichever is stricter, the study's or the site's. A policy that is missing or cannot be read fails
closed: without one nothing is loaded, computed or sent. What the floors mean for an answer is in `exit.gate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from annotated_types import Ge, Le
from pydantic import field_validator, model_validator

from fedmap.errors import RejectedError
from fedmap.files.digests import sha256_hex
from fedmap.process.settings import Section, read_config
from fedmap.study.plan.sections import ModelSection
from fedmap.study.plan.study_plan import StudyPlan
from fedmap.study.terms import StudyTerms

LEAST_CELL = 5
_MODELS: tuple[str, ...] = get_args(ModelSection.model_fields["name"].annotation)


class SitePolicy(Section):
    """What the site allows. The defaults are the careful choice."""

    min_rows: Annotated[int, Ge(1)] = 50
    """Training rows, with their validation share, below which the site takes no part."""
    min_events: Annotated[int, Ge(0)] = 5
    """Events (survival) or positive rows (binary) among those."""
    min_cell: Annotated[int, Ge(LEAST_CELL)] = 10
    """No count from 1 to one below this ever leaves, nor a score of so few rows."""
    egress: Literal["review", "automatic"] = "review"
    """Whether a named person releases every answer, or the checks alone do."""
    clip_norm: Annotated[float, Ge(0), Le(1e9)] = 0.0
    """The longest step from the global model that leaves; 0 for no limit."""
    noise_multiplier: Annotated[float, Ge(0), Le(1e3)] = 0.0
    """Gaussian noise on what leaves, as a multiple of clip_norm; 0 for none."""
    max_rounds: Annotated[int, Ge(0)] = 0
    """The longest study the site joins; 0 for no limit."""
    allowed_models: tuple[str, ...] = ()
    """Architectures that the site trains; empty for all."""

    @field_validator("allowed_models")
    @classmethod
    def _must_exist(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        unknown = sorted(set(names) - set(_MODELS))
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: no such model; there are {', '.join(_MODELS)}")
        return names

    @model_validator(mode="after")
    def _noise_needs_a_clip(self) -> Self:
        if self.noise_multiplier and not self.clip_norm:
            raise ValueError("noise_multiplier has no meaning without clip_norm")
        return self

    @property
    def digest(self) -> str:
        """SHA-256 over the policy's values: which policy was in force."""
        return sha256_hex(self.model_dump_json().encode())


@dataclass(frozen=True)
class Floors:
    """Least counts in force at this site for one study."""

    min_rows: int
    min_events: int
    min_cell: int

    @property
    def rows_to_train(self) -> int:
        return max(self.min_rows, self.min_cell)

    def allow(self, rows: int, events: int | None) -> bool:
        """Whether a site has enough for training to take part at all; None: the task has no such count."""
        return rows >= self.rows_to_train and (events is None or events >= self.min_events)


def read_policy(path: Path) -> SitePolicy:
    """The policy in force; `ConfigError` where there is none or it cannot be used."""
    return read_config(
        path,
        SitePolicy,
        "Put the policy back, or correct [policy] file; deploy/site_agent/policy.toml is one to start from. "
        "Without a policy nothing leaves.",
    )


def floors_of(plan: StudyPlan, policy: SitePolicy) -> Floors:
    """The stricter of plan and policy, one by one."""
    limits = plan.limits
    return Floors(
        min_rows=max(limits.min_rows, policy.min_rows),
        min_events=max(limits.min_events, policy.min_events),
        min_cell=max(limits.min_cell, policy.min_cell),
    )


def check_terms(policy: SitePolicy, terms: StudyTerms) -> None:
    """`RejectedError` for a study that the policy does not allow."""
    faults = []
    if policy.max_rounds and terms.rounds > policy.max_rounds:
        faults.append(f"it has {terms.rounds} rounds, and max_rounds is {policy.max_rounds}")
    name = terms.plan.model.name
    if policy.allowed_models and name not in policy.allowed_models:
        faults.append(f"its model is {name}, which is not among allowed_models")
    if faults:
        raise RejectedError(
            f"the site's policy does not allow the study {terms.study}: {'; '.join(faults)}",
            hint="Whoever answers for the policy can change the policy file; nobody else can.",
        )
