"""The one tree of FedMAP errors. Each carries a code for machines and a hint for the person who can act.

    FedmapError
    ├── PlanError          the study plan is unreadable or contradicts itself
    ├── DataError          a site's data do not fit the plan
    ├── ModelError         parameters, shapes or buffers do not fit the model
    └── TrainingError      a fit or an aggregation could not give a usable result

No message ever holds a patient's value: names, counts, limits and codes only.
"""

from __future__ import annotations


class FedmapError(Exception):
    """A failure with a cause in plain words and the next step for whoever can mend it."""

    code = "fedmap"

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}"


class PlanError(FedmapError):
    """The study plan is unreadable or contradicts itself; `problems` lists every fault found."""

    code = "plan"

    def __init__(self, source: str, problems: tuple[str, ...], *, hint: str) -> None:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(f"{source}: {len(problems)} problem(s) in the study plan{listed}", hint=hint)
        self.problems = problems


class DataError(FedmapError):
    """A site's data do not fit the plan; `problems` lists every fault found, with counts and no values."""

    code = "data"

    def __init__(self, site: str, problems: tuple[str, ...], *, hint: str) -> None:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(f"{site}: the data cannot be used as they are{listed}", hint=hint)
        self.site = site
        self.problems = problems


class ModelError(FedmapError):
    """Parameters, shapes or buffers do not fit the model the plan names."""

    code = "model"


class TrainingError(FedmapError):
    """A fit or an aggregation could not give a usable result."""

    code = "training"
