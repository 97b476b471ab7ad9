"""Follows studies until they are over: a live view on a terminal, a line for each change elsewhere.

An aggregator that is restarting is waited for, visibly. Time comes from outside, so that tests need none.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from fedmap.contract.v1.values import GetStatusResponse
from fedmap.errors import UnreachableError
from fedmap_aggregator.operator.message_json import message_json
from fedmap_aggregator.operator.status import FINAL, overview, status_line, study_view

_SITES_LIVE = 15
Fetch = Callable[[], GetStatusResponse]
LOST = "The aggregator cannot be reached; trying again. What is shown is the last that was heard."


class Display(Protocol):
    """Where a follower shows what it learns."""

    def show(self, response: GetStatusResponse) -> None: ...

    def lost(self) -> None: ...


def follow(fetch: Fetch, display: Display, pause: Callable[[], None], until_over: bool) -> None:
    """Shows each state. With `until_over` it ends when every study is; otherwise when interrupted."""
    while True:
        try:
            response = fetch()
        except UnreachableError:
            display.lost()
        else:
            display.show(response)
            if until_over and all(study.phase in FINAL for study in response.studies):
                return
        pause()


def view_of(response: GetStatusResponse, in_full: bool, most_sites: int | None = None) -> RenderableType:
    """The named study in full, or all of them in a table."""
    if not in_full or not response.studies:
        return overview(response.studies)
    return Group(*(study_view(study, response.time_unix_ms, most_sites) for study in response.studies))


class LiveDisplay:
    """The whole view, redrawn in place. Use it in the `with` block of its `live`."""

    def __init__(self, console: Console, in_full: bool) -> None:
        self.live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
        self._in_full = in_full
        self._newest: RenderableType = Text("connecting …")

    def show(self, response: GetStatusResponse) -> None:
        self._newest = view_of(response, self._in_full, _SITES_LIVE)
        self.live.update(self._newest, refresh=True)

    def lost(self) -> None:
        self.live.update(Group(self._newest, Text(LOST, style="bold red")), refresh=True)


class LineDisplay:
    """One line for each change: for logs, and with `as_json` for programs."""

    def __init__(self, write: Callable[[str], None], as_json: bool) -> None:
        self._write = write
        self._as_json = as_json
        self._said: dict[str, str] = {}
        self._is_lost = False

    def show(self, response: GetStatusResponse) -> None:
        self._is_lost = False
        for study in response.studies:
            line = json.dumps(message_json(study)) if self._as_json else status_line(study)
            if self._said.get(study.study) != line:
                self._said[study.study] = line
                self._write(line)

    def lost(self) -> None:
        if not self._is_lost and not self._as_json:
            self._write(LOST)
        self._is_lost = True
