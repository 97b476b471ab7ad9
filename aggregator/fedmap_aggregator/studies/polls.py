"""Agents that wait for a task: a bounded number of them, woken together, each able to go on its own.

Every waiting thread has its own event, so that one agent's going wakes nobody else. What an agent gets is
the service's business.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

_Found = TypeVar("_Found")


class Poll:
    """One waiting agent."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._gone = False

    def leave(self) -> None:
        """The agent has hung up: its thread is free again at once."""
        self._gone = True
        self._event.set()

    def wake(self) -> None:
        """Something may have changed: look again."""
        self._event.set()

    def wait(self, look: Callable[[], _Found | None], seconds: float) -> _Found | None:
        """What `look` finds, now or after a later wake; None when the time is up or the agent goes."""
        end = time.monotonic() + seconds
        while True:
            self._event.clear()
            if self._gone:
                return None
            found = look()
            left = end - time.monotonic()
            if found is not None or left <= 0 or not self._event.wait(left):
                return found


class PollBoard:
    """All agents that wait now."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._polls: set[Poll] = set()
        self._closed = False
        self._lock = threading.Lock()

    @contextmanager
    def waiting(self, poll: Poll) -> Iterator[bool]:
        """Registers a poll for the block; False: no room left, so look once and do not wait."""
        with self._lock:
            admitted = not self._closed and len(self._polls) < self._most
            if admitted:
                self._polls.add(poll)
        try:
            yield admitted
        finally:
            with self._lock:
                self._polls.discard(poll)

    def wake_all(self) -> None:
        with self._lock:
            polls = tuple(self._polls)
        for poll in polls:
            poll.wake()

    def close(self) -> None:
        """The server stops: nobody waits any longer, and nobody new does."""
        with self._lock:
            self._closed = True
            polls = tuple(self._polls)
        for poll in polls:
            poll.leave()
