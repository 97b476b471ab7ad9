"""Named points at which a test may have the process killed, as a power cut would do it.

`reach` does nothing unless the environment variable FEDMAP_FAULT names the point: FEDMAP_FAULT=name kills
the process the first time it gets there, FEDMAP_FAULT=name:3 the third time. The kill is SIGKILL: nothing
is flushed, no handler runs. The variable is read once, when a process first reaches any point. No point
ever changes data.
"""

from __future__ import annotations

import functools
import os
import signal
import threading

VARIABLE = "FEDMAP_FAULT"


class FaultPoint:
    """Counts the visits to one named point and strikes at the n-th."""

    def __init__(self, setting: str) -> None:
        name, _, times = setting.partition(":")
        self._name = name
        self._left = int(times) if times.isdecimal() else 1
        self._lock = threading.Lock()

    def strikes(self, name: str) -> bool:
        """Whether this visit is the one to kill at."""
        if not self._name or name != self._name:
            return False
        with self._lock:
            self._left -= 1
            return self._left == 0


@functools.cache
def _point() -> FaultPoint:
    return FaultPoint(os.environ.get(VARIABLE, ""))


def reach(name: str) -> None:
    """The process is at this point now."""
    if _point().strikes(name):
        os.kill(os.getpid(), signal.SIGKILL)
