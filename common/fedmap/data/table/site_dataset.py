"""What the loaders hand on: one site's rows as tensors, with what was left out and what is odd about them.

No identifier and no column of the file survives into these classes, only the names of the model's inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedmap.algorithm.examples import Examples


@dataclass(frozen=True)
class FeatureLayout:
    """The model's inputs, in order."""

    names: tuple[str, ...]
    """For example "sbp" or, for a category, "smoking=current"."""
    scaled: tuple[bool, ...]
    """Which are standardised; indicators never are."""
    groups: tuple[tuple[str, tuple[int, ...]], ...]
    """(group, indices) in order of first appearance; features without one are in group ""."""


@dataclass(frozen=True)
class Exclusion:
    """Rows left out by a rule. Each row counts once, under the first rule that drops it."""

    reason: str
    rows: int


@dataclass(frozen=True)
class MissingCount:
    """Empty cells of one feature of the plan, before rows were left out for them."""

    feature: str  # name or prefix
    cells: int
    of: int  # cells that were looked at


@dataclass(frozen=True)
class SiteDataset:
    """One site's data, checked against the plan."""

    site: str
    layout: FeatureLayout
    train: Examples
    validation: Examples
    test: Examples
    exclusions: tuple[Exclusion, ...]
    notes: tuple[str, ...]
    """What a reader of the results should know, such as a training part with one class only."""
    missing: tuple[MissingCount, ...] = ()
    """One for each feature of the plan, over all parts together."""
