"""SIGTERM and Ctrl-C: the loop ends at its next look; a fit or transfer under way is abandoned on the spot.

Nothing is lost by that: what is finished lies in the outbox, and what is not is done again after the next
start. Between those stretches, while files change hands, a signal only leaves a mark.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Abandoned(BaseException):
    """The work under way is given up because the agent was told to stop."""


class Stop:
    """Whether the agent was told to stop, and by which signal."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._abandonable = False
        self.signal: signal.Signals | None = None

    def install(self) -> None:
        """Listen to SIGTERM and SIGINT from now on; only in the main thread of a process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def __bool__(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()

    def wait(self, seconds: float) -> None:
        """Sleep that a stop ends."""
        self._event.wait(seconds)

    @contextmanager
    def abandonable(self) -> Iterator[None]:
        """A stretch that a signal may cut short at any point."""
        if self:
            raise Abandoned
        self._abandonable = True
        try:
            yield
        finally:
            self._abandonable = False

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self.signal = self.signal or signal.Signals(number)
        self._event.set()
        if self._abandonable:
            self._abandonable = False
            raise Abandoned
