"""How slow an upload may be. A stream that stalls, drips or never ends is cut off with a typed error.

The sender is read by a thread of its own, so that whoever waits for the next part can stop waiting. No
gRPC here: any iterator of parts will do.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from fedmap.errors import LimitError

_AHEAD = 4  # parts that are read before somebody takes them
_Part = TypeVar("_Part")


@dataclass(frozen=True)
class PaceLimits:
    """In seconds and bytes per second."""

    whole: float
    stall: float
    slowest: float


@dataclass(frozen=True)
class _End:
    error: Exception | None


class PacedParts(Generic[_Part]):
    """Iterates over the parts of a stream; LimitError where it is too slow. Use it in a `with` block."""

    def __init__(
        self,
        parts: Iterator[_Part],
        size_of: Callable[[_Part], int],
        limits: PaceLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parts = parts
        self._size_of = size_of
        self._limits = limits
        self._clock = clock
        self._queue: queue.Queue[_Part | _End] = queue.Queue(_AHEAD)
        self._stopped = threading.Event()
        self._began = clock()
        self._bytes = 0

    def __enter__(self) -> Iterator[_Part]:
        threading.Thread(target=self._read, name="upload", daemon=True).start()
        return self._taken()

    def __exit__(self, *_: object) -> None:
        self._stopped.set()

    def _read(self) -> None:
        end = _End(None)
        try:
            for part in self._parts:
                if not self._offer(part):
                    return
        except Exception as error:  # noqa: BLE001 - whatever the sender's stream raises goes to the one who reads
            end = _End(error)
        self._offer(end)

    def _offer(self, part: _Part | _End) -> bool:
        """Waits for room; False when nobody takes parts any longer."""
        while not self._stopped.is_set():
            try:
                self._queue.put(part, timeout=0.5)
            except queue.Full:
                continue
            return True
        return False

    def _taken(self) -> Iterator[_Part]:
        while True:
            part = self._next()
            if isinstance(part, _End):
                if part.error is not None:
                    raise part.error
                return
            self._bytes += self._size_of(part)
            self._check_rate()
            yield part

    def _next(self) -> _Part | _End:
        left = self._began + self._limits.whole - self._clock()
        try:
            return self._queue.get(timeout=max(0.0, min(left, self._limits.stall)))
        except queue.Empty:
            if left <= self._limits.stall:
                raise self._too_long() from None
            raise LimitError(
                f"nothing arrived for {self._limits.stall:g} s, so the upload was cut off",
                hint="send the answer again; check the connection, and any proxy that holds data back",
            ) from None

    def _check_rate(self) -> None:
        spent = self._clock() - self._began
        if spent > self._limits.whole:
            raise self._too_long()
        if self._bytes < (spent - self._limits.stall) * self._limits.slowest:
            raise LimitError(
                f"the upload is slower than {self._limits.slowest / 1024:g} KiB/s, so it was cut off",
                hint="send the answer again over a better connection, or ask the operator to lower "
                "limits.slowest_kib_per_second",
            )

    def _too_long(self) -> LimitError:
        return LimitError(
            f"the upload took longer than {self._limits.whole:g} s, so it was cut off",
            hint="send the answer again over a better connection, or ask the operator to raise "
            "limits.upload_seconds",
        )
