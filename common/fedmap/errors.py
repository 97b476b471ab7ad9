"""The one tree of FedMAP errors. Each carries a code for machines and a hint for the person who can act.

    FedmapError
    ├── PlanError          the study plan is unreadable or contradicts itself
    ├── DataError          a site's data do not fit the plan
    ├── ModelError         parameters, shapes or buffers do not fit the model
    ├── TrainingError      a fit or an aggregation could not give a usable result
    ├── ConfigError        a configuration or policy file cannot be used
    ├── StorageError       a disk, folder or database does not do its part
    ├── PortError          an address to listen on cannot be had
    ├── UnreachableError   the other side cannot be reached; trying again later is right
    └── ServiceError       one side of the federation refuses what the other asked
        ├── TokenError         the invitation's token is wrong, used, expired or another site's
        ├── NotAllowedError    this identity may not make this call
        ├── NotFoundError      no such study, site, task or prior, or none that the caller may see
        ├── ConflictError      the same thing exists already with other content
        ├── StaleError         the task is closed: the federation has moved on
        ├── StateError         not possible in this phase
        ├── WithdrawnError     the site left the study while its work was under way
        ├── RejectedError      the content did not pass the checks
        ├── IntegrityError     size, digest or signature do not fit the bytes
        ├── LimitError         too many, too large or too slow
        └── IncompatibleError  the two sides speak different versions

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


class ConfigError(FedmapError):
    """A configuration or policy file cannot be used; `problems` lists every fault found."""

    code = "config"

    def __init__(self, source: str, problems: tuple[str, ...], *, hint: str) -> None:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(f"{source}: {len(problems)} problem(s){listed}", hint=hint)
        self.problems = problems


class StorageError(FedmapError):
    """A disk, folder or database does not do its part: full, read-only, locked, missing."""

    code = "storage"


class PortError(FedmapError):
    """An address to listen on cannot be had: in use, not allowed, or not of this machine."""

    code = "port"


class UnreachableError(FedmapError):
    """The other side cannot be reached now; trying again later is right."""

    code = "unreachable"


class ServiceError(FedmapError):
    """One side of the federation refuses what the other asked. Crosses the wire with code and hint."""

    code = "service"


class TokenError(ServiceError):
    """The invitation's token is wrong, used, expired or another site's."""

    code = "token"


class NotAllowedError(ServiceError):
    """This identity may not make this call."""

    code = "not_allowed"


class NotFoundError(ServiceError):
    """No such study, site, task or prior, or none that the caller may see."""

    code = "not_found"


class ConflictError(ServiceError):
    """The same thing exists already with other content."""

    code = "conflict"


class StaleError(ServiceError):
    """The task is closed: the federation has moved on."""

    code = "stale"


class StateError(ServiceError):
    """Not possible in this phase."""

    code = "state"


class WithdrawnError(ServiceError):
    """The site left the study, or purged it, while a task of it was done: the work is dropped."""

    code = "withdrawn"


class RejectedError(ServiceError):
    """The content did not pass the checks."""

    code = "rejected"


class IntegrityError(ServiceError):
    """Size, digest or signature do not fit the bytes."""

    code = "integrity"


class LimitError(ServiceError):
    """Too many, too large or too slow."""

    code = "limit"


class IncompatibleError(ServiceError):
    """The two sides speak different versions."""

    code = "incompatible"
