"""Ends waits that take too long: one thread for all of them, idle when there are none.

For calls that are opened and then say nothing. What ending means is the caller's: a function is called.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LOOK_SECONDS = 0.5


class StallWatch:
    """Safe to use from any thread. The thread starts with the first wait and ends with the program."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._waits: dict[object, tuple[float, Callable[[], object]]] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @contextmanager
    def waiting(self, end: Callable[[], object]) -> Iterator[None]:
        """`end` is called, in another thread, when the block is not left within the time."""
        key = object()
        with self._changed:
            self._waits[key] = (self._clock() + self._seconds, end)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stall-watch", daemon=True)
                self._thread.start()
            elif len(self._waits) == 1:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._waits.pop(key, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waits:
                    self._changed.wait()
                now = self._clock()
                late = [key for key, (deadline, _) in self._waits.items() if deadline <= now]
                ends = [self._waits.pop(key)[1] for key in late]
            for end in ends:
                end()
            time.sleep(min(_LOOK_SECONDS, self._seconds))
