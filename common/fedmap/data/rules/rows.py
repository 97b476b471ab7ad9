"""Dropping rows by rule, with the reason and the count on record. Which rows is for the caller to say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedmap.data.table.faults import Fault, Mask
from fedmap.data.table.site_dataset import Exclusion


@dataclass(frozen=True, eq=False)
class RowRules:
    """Which rows a rule set would drop, and why it could not judge."""

    rules: tuple[tuple[str, Mask], ...] = ()
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True)
class RuledRows:
    """The rows a rule set has left, what it dropped, and why it could not judge."""

    frame: pd.DataFrame
    exclusions: tuple[Exclusion, ...] = ()
    problems: tuple[str, ...] = ()


def apply_rules(frame: pd.DataFrame, judged: RowRules) -> RuledRows:
    """Drops what the rules mark, and says what they could not judge."""
    ruled = drop_rows(frame, judged.rules)
    return RuledRows(ruled.frame, ruled.exclusions, tuple(f.problem(len(frame)) for f in judged.faults))


def drop_rows(frame: pd.DataFrame, rules: tuple[tuple[str, Mask], ...]) -> RuledRows:
    """Drops what any rule marks; a row that several mark counts under the first."""
    kept = np.ones(len(frame), dtype=np.bool_)
    exclusions: list[Exclusion] = []
    for reason, marked in rules:
        dropped = int((kept & marked).sum())
        if dropped:
            exclusions.append(Exclusion(reason, dropped))
        kept &= ~marked
    left = frame if kept.all() else frame.loc[kept].reset_index(drop=True)
    return RuledRows(left, tuple(exclusions))
