"""The numbers a study fixes for the algorithm. Frozen; validated where the study plan is read.

The bounds stand beside each field so that the plan (pydantic) checks the very classes the mathematics
uses: there is no second copy to drift apart. Nothing here reads files or applies defaults from outside.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import floor
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Lt, MinLen

WeightingRule = Literal["per_sample", "literal", "reference", "sample_count"]
StartRule = Literal["local", "global"]
PositiveInt = Annotated[int, Ge(1), Le(1_000_000)]
Units = Annotated[int, Ge(1), Le(4096)]
Strength = Annotated[float, Gt(0), Le(1e6)]


@dataclass(frozen=True)
class PriorSettings:
    """The penalty R(θ; μ, ψ) = f_ψ(θ, μ) + α‖θ−μ‖² + ε(‖θ‖² + ‖μ‖²)."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    alpha: Strength = 0.05
    epsilon: Strength = 1e-4
    convex: bool = True
    """False leaves f_ψ out: the quadratic prior alone, an ablation."""
    hidden: Annotated[tuple[Units, Units], MinLen(2)] = (64, 32)
    sketch: Annotated[int, Ge(0), Le(1_000_000)] = 0
    """Width of the seeded linear sketch before the first layer; 0 for none."""
    seed: Annotated[int, Ge(0)] = 0
    """Seeds the first ψ and the sketch, which are the same everywhere and never travel."""


@dataclass(frozen=True)
class TrainingSettings:
    """Local MAP estimation at a site (and fine-tuning at a T2 site)."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    epochs: PositiveInt = 10
    batch_size: Annotated[int, Ge(2), Le(1_000_000)] = 128
    learning_rate: Annotated[float, Gt(0), Le(1)] = 1e-3
    weight_decay: Annotated[float, Ge(0), Lt(1)] = 0.0
    patience: PositiveInt = 5
    fine_tune_epochs: PositiveInt = 50
    """Most epochs of a T2 site's only fit; early stopping usually ends it sooner."""
    start: StartRule = "local"
    consensus_share: Annotated[float, Ge(0), Lt(1)] = 0.0
    """The first rounds, this share of all (rounded down), look for a μ that the sites agree on."""


@dataclass(frozen=True)
class AggregationSettings:
    """The centre's half of a round."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    weighting: WeightingRule = "per_sample"
    psi_learning_rate: Annotated[float, Ge(0), Le(1e3)] = 1e-3
    psi_steps: Annotated[int, Ge(0), Le(10_000)] = 2


@dataclass(frozen=True)
class FedmapSettings:
    """All three together, as a study fixes them."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    prior: PriorSettings = field(default_factory=PriorSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    aggregation: AggregationSettings = field(default_factory=AggregationSettings)

    def is_consensus(self, round_number: int, rounds: int) -> bool:
        """Whether this round (from 1) of so many is a consensus round. The last is always held by R."""
        first = floor(round(self.training.consensus_share * rounds, 6))  # 0.29 · 100 is 28.999…, and means 29
        return round_number <= min(first, rounds - 1)

    def aggregation_in(self, round_number: int, rounds: int) -> AggregationSettings:
        """How the centre makes the next prior. ψ learns from models that R held: not in consensus rounds."""
        consensus = self.is_consensus(round_number, rounds)
        return replace(self.aggregation, psi_steps=0) if consensus else self.aggregation
