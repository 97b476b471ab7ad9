"""Which rules on rows a shape of file has, by the plan's `data.format`: the one table of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import pandas as pd

from fedmap.data.rules import cprd, interval
from fedmap.data.rules.rows import RowRules, RuledRows, apply_rules
from fedmap.study.plan.sections import TaskSection


@dataclass(frozen=True)
class Format:
    """The rules of one shape of file, beside those of the plan."""

    columns: tuple[str, ...] = ()
    judge: Callable[[pd.DataFrame], RowRules] = lambda _: RowRules()
    """By the columns that are there; without an outcome."""
    apply: Callable[[pd.DataFrame, TaskSection], RuledRows] | None = None
    """To rows with an outcome; None: what `judge` says."""

    def applied(self, frame: pd.DataFrame, task: TaskSection) -> RuledRows:
        return apply_rules(frame, self.judge(frame)) if self.apply is None else self.apply(frame, task)


_PLAIN = Format()
FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "cprd": Format(cprd.RULE_COLUMNS, cprd.cprd_rules, cprd.apply_cprd_rules),
        "interval": Format(interval.RULE_COLUMNS, interval.interval_rules),
    }
)


def format_of(name: str) -> Format:
    """Without rules of its own where the table has none."""
    return FORMATS.get(name, _PLAIN)
