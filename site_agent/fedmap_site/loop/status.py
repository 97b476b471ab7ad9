"""A small file beside the state that says how the running agent is, for `fedmap-site status` and `health`.

Written when that changes, read by whoever asks. It is no record: the audit log and the outbox are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from fedmap.errors import StorageError
from fedmap.files.durable import read_file, write_durably
from fedmap.process.log import get_logger
from fedmap.process.settings import Section
from fedmap_site.loop.notices import Notice

FILE = "agent.json"
Condition = Literal["starting", "connected", "waiting", "stopped"]
_LOOK = "Its log says why; `fedmap-site doctor` names what is wrong."


class StatusRecord(Section):
    """How the agent was when it last changed."""

    condition: Condition
    at_unix_ms: int
    process: int = 0
    """Its number, as the agent itself sees it."""
    message: str = ""
    hint: str = ""


class AgentStatus:
    """The writing side."""

    def __init__(self, state: Path, clock: Callable[[], int]) -> None:
        self._path = state / FILE
        self._clock = clock
        self._last: tuple[str, str] | None = None

    def starting(self) -> None:
        self._write("starting", Notice(""))

    def well(self) -> None:
        self._write("connected", Notice(""))

    def trouble(self, notice: Notice) -> None:
        self._write("waiting", notice)

    def stopped(self) -> None:
        self._write("stopped", Notice(""))

    def _write(self, condition: Condition, notice: Notice) -> None:
        if self._last == (condition, notice.message):
            return
        self._last = (condition, notice.message)
        record = StatusRecord(
            condition=condition,
            at_unix_ms=self._clock(),
            process=os.getpid(),
            message=notice.message,
            hint=notice.hint,
        )
        try:
            write_durably(self._path, record.model_dump_json(indent=1).encode() + b"\n")
        except StorageError as error:  # the loop goes on, and what is wrong with the disk is told elsewhere
            get_logger().warning("status_not_written", code=error.code)


def read_status(state: Path) -> StatusRecord | None:
    """The newest record; None where there is none that can be read."""
    path = state / FILE
    if not path.exists():
        return None
    try:
        return StatusRecord.model_validate_json(read_file(path), strict=True)
    except ValidationError:
        return None


def trouble_of(state: Path) -> Notice | None:
    """What keeps this site's agent from working; None while it runs and the aggregator lets it in.

    Takes no lock, so that it never stands in the way of an agent that starts.
    """
    record = read_status(state)
    if record is None or record.condition == "stopped" or not _runs(record.process):
        return Notice("the agent does not run", f"Start it with `fedmap-site run`. {_LOOK}")
    match record.condition:
        case "connected":
            return None
        case "starting":
            return Notice("the agent has not reached the aggregator yet", _LOOK)
        case "waiting":
            return Notice(record.message, record.hint)


def _runs(process: int) -> bool:
    if process <= 0:
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it runs under another account
        return True
    return True
