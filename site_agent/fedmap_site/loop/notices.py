"""What the agent has to say to the person who runs it: plain sentences, beside the log.

The log keeps to its listed fields; these sentences are the messages and hints of our own errors, which never
hold a patient's value. The same thing is said once, until something else has been said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedmap.errors import FedmapError


@dataclass(frozen=True)
class Notice:
    """One thing to know, and what to do about it where something can be done."""

    message: str
    hint: str = ""

    @classmethod
    def of(cls, error: FedmapError, about: str = "") -> Notice:
        return cls(f"{about}: {error.message}" if about else error.message, error.hint)

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


Tell = Callable[[Notice], None]


class Notices:
    """Passes notices on, each once in a row."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._last: Notice | None = None

    def __call__(self, notice: Notice) -> None:
        if notice != self._last:
            self._last = notice
            self._tell(notice)

    @property
    def last(self) -> Notice | None:
        return self._last
