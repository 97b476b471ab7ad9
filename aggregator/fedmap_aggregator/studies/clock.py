"""The thread in which time passes for the studies: deadlines, silences, computations to be tried again.

It sleeps until the next thing is due and is woken by every change. A failure that belongs to the disk or
the database is logged and tried again; any other ends the thread, and whoever runs the server is told.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from fedmap.errors import FedmapError
from fedmap.process.log import get_logger
from fedmap_aggregator.studies.service import StudyService

_LONGEST_SECONDS = 5.0  # a wall clock may be set while we sleep
_SHORTEST_SECONDS = 0.02
_HOUR_MS = 3_600_000


class StudyClock:
    """Start it after the studies are loaded."""

    def __init__(
        self,
        service: StudyService,
        clock_ms: Callable[[], int],
        hourly: Callable[[], None],
        on_failure: Callable[[], None],
    ) -> None:
        self._service = service
        self._clock_ms = clock_ms
        self._hourly = hourly
        self._hour_ends = clock_ms() + _HOUR_MS
        self._on_failure = on_failure
        self._event = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="study-clock", daemon=True)
        self._log = get_logger()

    def start(self) -> None:
        self._service.when_changed(self._event.set)
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._event.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._event.clear()
                self._event.wait(self._pass())
        finally:
            if not self._stopping:
                self._on_failure()

    def _pass(self) -> float:
        """One look at all studies; how long to sleep afterwards, in seconds."""
        now = self._clock_ms()
        try:
            due = self._service.pass_time(now)
            self._service.compute_due()
            if now >= self._hour_ends:
                self._hour_ends = now + _HOUR_MS
                self._hourly()
        except FedmapError as error:
            self._log.error("clock_failed", exc_info=error)
            return _LONGEST_SECONDS
        if due is None:
            return _LONGEST_SECONDS
        return min(max((due - now) / 1000, _SHORTEST_SECONDS), _LONGEST_SECONDS)
