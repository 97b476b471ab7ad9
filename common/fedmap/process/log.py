"""Logs as JSON lines, one event each, in which only listed fields appear: names, counts, codes and digests.

Everything passes one filter, at every level: our own events, the messages of libraries, warnings and crashes.
What is not listed is dropped and named; messages and local variables of exceptions are never written, because
nobody can promise what they quote. There is no second way to the log, and no setting that opens the filter.
"""

from __future__ import annotations

import errno
import logging
import math
import re
import sys
import threading
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import TextIO, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

from fedmap.errors import ConfigError, FedmapError

# fmt: off
ALLOWED_FIELDS = frozenset([
    "event", "level", "timestamp", "service", "logger", "thread", "dropped_fields", "accepted",
    "action", "actor", "address", "answered", "attempt", "bytes", "ca_bundle", "caller", "code",
    "count", "deadline", "digest", "egress", "enabled", "entry", "expires", "instance", "kind",
    "limit", "membership", "mode", "operator", "outbox", "path_kind", "peer", "phase", "port",
    "progress", "protocol", "proxy", "quorum", "reason_code", "region", "rejected", "role", "round",
    "rounds", "rpc", "seconds", "serial", "signal", "site", "sites", "size", "stage", "start",
    "state", "status", "study", "task", "tier", "version",
])
# fmt: on
MAX_VALUE = 300
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

# An event is a fixed phrase of the source, such as `answer_accepted`: never a text with values in it.
_EVENT = re.compile(r"[a-z][a-z_ .-]{0,79}")
_FIELD = re.compile(r"[a-z_]{1,40}")
_PASSWORD = re.compile(r"//[^/@\s]*@")
_OUR_PACKAGES = ("fedmap", "fedmap_aggregator", "fedmap_site", "fedmap_lab", "fedmap_flower")
_MAX_FRAMES = 12
_Exception = BaseException | None


def get_logger() -> FilteringBoundLogger:
    """For `log.info("answer_accepted", study=…, site=…)`. Before `configure`, warnings only, to stderr."""
    return cast(FilteringBoundLogger, structlog.get_logger())


def configure(level: str = "info", stream: TextIO | None = None, service: str = "") -> None:
    """Sets up the logs of a whole process; `stream` is stderr by default, `service` stands in every line.

    From now on libraries' messages (WARNING and worse), Python warnings and crashes take the same way.
    """
    if level not in LEVELS:
        raise ConfigError("log level", (f"must be one of {', '.join(LEVELS)}",), hint="Correct [log] level.")
    _install(LEVELS[level], stream, service)
    root = logging.getLogger()
    root.handlers = [handler for handler in root.handlers if not isinstance(handler, _LibraryHandler)]
    root.addHandler(_LibraryHandler(logging.WARNING))
    logging.captureWarnings(True)
    sys.excepthook = _on_crash
    threading.excepthook = _on_thread_crash
    sys.unraisablehook = _on_unraisable


def allow_listed(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """The filter: the last processor before the line is written."""
    kept: dict[str, object] = {}
    dropped: list[str] = []
    exception = _exception_of(event.pop("exc_info", None))
    for name, value in event.items():
        if name == "event":
            kept[name] = value if isinstance(value, str) and _EVENT.fullmatch(value) else "unnamed_event"
        elif name not in ALLOWED_FIELDS or name == "dropped_fields" or not _is_plain(value):
            dropped.append(name if _FIELD.fullmatch(name) else "?")
        elif value is not None:
            kept[name] = _clean(value)
    if exception is not None:
        kept.update(_facts_of(exception))
    if dropped:
        kept["dropped_fields"] = sorted(set(dropped))
    return kept


def _is_plain(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_VALUE
    return value is None or isinstance(value, bool | int | float)


def _clean(value: object) -> object:
    """Texts without a password in an address; numbers as JSON knows them."""
    if isinstance(value, str):
        return _PASSWORD.sub("//***@", value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _exception_of(exc_info: object) -> _Exception:
    if isinstance(exc_info, BaseException):
        return exc_info
    if isinstance(exc_info, tuple):
        return exc_info[1] if isinstance(exc_info[1], BaseException) else None
    return sys.exception() if exc_info else None


def _facts_of(exception: BaseException) -> dict[str, object]:
    """Types, places in our own code and system error names: what can be told without quoting anything."""
    chain = list(_chain(exception))
    facts: dict[str, object] = {"error": " < ".join(type(link).__name__ for link in chain)[:MAX_VALUE]}
    places = [place for link in reversed(chain) for place in _our_frames(link.__traceback__)]
    if places:
        facts["where"] = places[-_MAX_FRAMES:]
    for link in chain:
        if isinstance(link, FedmapError):
            facts.setdefault("code", link.code)
        if isinstance(link, OSError) and link.errno is not None:
            facts.setdefault("os_error", errno.errorcode.get(link.errno, "unknown"))
    return facts


def _chain(exception: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: _Exception = exception
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _our_frames(trace: TracebackType | None) -> Iterator[str]:
    for frame, line in traceback.walk_tb(trace):
        spec = frame.f_globals.get("__spec__")
        name: str = frame.f_globals.get("__name__", "") if spec is None else spec.name
        if name.partition(".")[0] in _OUR_PACKAGES:
            yield f"{name}:{line}"


class _Sink:
    """Writes whole lines. A log that cannot be written (full disk, closed pipe) must not stop a study."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def write(self, line: str) -> None:
        stream = self._stream or sys.stderr
        with self._lock:
            try:
                stream.write(line + "\n")
                stream.flush()
            except (OSError, ValueError):
                return

    debug = info = warning = error = critical = exception = msg = log = write


class _LibraryHandler(logging.Handler):
    """What libraries say through `logging`: who and how bad. The text may quote data, so it stays out."""

    def emit(self, record: logging.LogRecord) -> None:
        level = "error" if record.levelno >= logging.ERROR else "warning"
        name = record.name if len(record.name) <= MAX_VALUE else "?"
        getattr(get_logger(), level)("library_message", logger=name, exc_info=record.exc_info)


def _install(level: int, stream: TextIO | None, service: str) -> None:
    sink = _Sink(stream)

    def add_service(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {"service": service, **event} if service else event

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            add_service,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            allow_listed,
            structlog.processors.JSONRenderer(sort_keys=False),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: sink,
        cache_logger_on_first_use=False,
    )


def _on_crash(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, value, trace)
        return
    get_logger().critical("program_failed", exc_info=value)


def _on_thread_crash(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not issubclass(args.exc_type, SystemExit):
        name = args.thread.name if args.thread else None
        get_logger().critical("thread_failed", thread=name, exc_info=args.exc_value)


def _on_unraisable(args: sys.UnraisableHookArgs) -> None:
    get_logger().error("cleanup_failed", exc_info=args.exc_value)


# Before `configure`, the library's own default would print every field of every event to stdout.
_install(LEVELS["warning"], None, "")
