"""What every call passes before its handler: who is it, may they, and are they asking for too much at
once?

Plain Python without gRPC, so that the rules can be tested without a server. The interceptor in `server`
enters the guard, and nothing reaches a handler but through it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from fedmap.errors import LimitError, NotAllowedError
from fedmap_aggregator.identity.callers import Caller, IdentityResolver, authorise


class CallLimiter:
    """At most so many calls of one caller at the same time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._running: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def slot(self, key: str) -> Iterator[None]:
        """One call of this caller; LimitError when it has too many running."""
        with self._lock:
            if self._running[key] >= self._most:
                raise LimitError(
                    f"{self._most} calls of this caller are running already",
                    hint="wait for them to end; one agent needs at most four at the same time",
                )
            self._running[key] += 1
        try:
            yield
        finally:
            with self._lock:
                self._running[key] -= 1
                if not self._running[key]:
                    del self._running[key]


class CallGuard:
    """Identity, authorisation and the limit per caller, in this order."""

    def __init__(
        self, resolver: IdentityResolver, calls_per_caller: int, clock_ms: Callable[[], int]
    ) -> None:
        self._resolver = resolver
        self._limiter = CallLimiter(calls_per_caller)
        self._clock_ms = clock_ms

    def identify(self, rpc: str, certificate_pem: bytes | None) -> Caller:
        """The caller, if the table lets it make this call."""
        if certificate_pem is None:
            raise NotAllowedError(
                "the caller shows no certificate", hint="connect with a certificate of this federation"
            )
        caller = self._resolver.resolve(certificate_pem, self._clock_ms())
        authorise(rpc, caller)
        return caller

    @contextmanager
    def admitted(self, caller: Caller) -> Iterator[None]:
        """Holds one of the caller's slots while the call runs."""
        with self._limiter.slot(caller.key):
            yield


_CALLER: ContextVar[Caller] = ContextVar("caller")


def set_caller(caller: Caller) -> None:
    """For the thread that serves the call; the next call in it sets its own."""
    _CALLER.set(caller)


def current_caller() -> Caller:
    """Whoever makes the call that this thread serves. A LookupError means that the guard was passed by."""
    return _CALLER.get()
