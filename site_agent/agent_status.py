"""A small file beside the state that says how the running agent is, for `fedmap-site status`.

Written when that changes, read by whoever asks. It is no record: the audit log and the outbox are.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from common.durable_files import read_file, write_durably
from common.errors import StorageError
from common.log import get_logger
from common.service_config import Section
from site_agent.notices import Notice

FILE = "agent.json"


class StatusRecord(Section):
    """How the agent was when it last changed."""

    condition: Literal["connected", "waiting", "stopped"]
    at_unix_ms: int
    message: str = ""
    hint: str = ""


class AgentStatus:
    """The writing side."""

    def __init__(self, state: Path, clock: Callable[[], int]) -> None:
        self._path = state / FILE
        self._clock = clock
        self._last: tuple[str, str] | None = None

    def well(self) -> None:
        self._write("connected", Notice(""))

    def trouble(self, notice: Notice) -> None:
        self._write("waiting", notice)

    def stopped(self) -> None:
        self._write("stopped", Notice(""))

    def _write(self, condition: Literal["connected", "waiting", "stopped"], notice: Notice) -> None:
        if self._last == (condition, notice.message):
            return
        self._last = (condition, notice.message)
        record = StatusRecord(
            condition=condition, at_unix_ms=self._clock(), message=notice.message, hint=notice.hint
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
