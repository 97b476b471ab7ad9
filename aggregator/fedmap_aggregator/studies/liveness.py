"""Who has shown a sign of life, when, and with which agent. Evidence only: no timers, no studies, no
database.

A restarted agent counts its starts up and takes over at once. A second agent under the same identity is
refused as long as the first one is alive. After a start of the server everybody counts as heard at that
moment, so that nobody is silent only because the server was away.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

from fedmap.errors import ConflictError, RejectedError

_TEXT_LIMIT = 64
STAGES = frozenset({"idle", "loading", "training", "scoring", "review", "sending"})


@dataclass(frozen=True)
class Instance:
    """One agent (its state folder) and how often it has been started."""

    id: str
    start: int


@dataclass(frozen=True)
class Progress:
    """What an agent says that it is doing."""

    study: str = ""
    task_id: str = ""
    stage: str = "idle"
    share: float = 0.0  # 0 to 1


@dataclass(frozen=True)
class Presence:
    """What is known of one site since the server started."""

    heard_at: int  # unix ms; 0: not at all
    instance: Instance | None = None
    progress: Progress = Progress()
    software_version: str = ""


_UNKNOWN = Presence(heard_at=0)


class Liveness:
    """The presence of every site. Safe to call from any thread."""

    def __init__(self, silent_after_ms: int, started_at: int) -> None:
        self._silent_after = silent_after_ms
        self._started_at = started_at
        self._sites: dict[str, Presence] = {}
        self._lock = threading.Lock()

    def heard(self, site: str, instance: Instance | None, at: int) -> None:
        """A sign of life. ConflictError when another agent with this identity is alive."""
        if instance is not None and (not instance.id or len(instance.id) > _TEXT_LIMIT):
            raise RejectedError(
                "the agent gives no usable instance id",
                hint="update the site agent; its instance.json holds the id",
            )
        with self._lock:
            known = self._sites.get(site, _UNKNOWN)
            kept = known.instance if instance is None else self._admitted(site, known, instance, at)
            self._sites[site] = replace(known, heard_at=max(at, known.heard_at), instance=kept)

    def progress(self, site: str, progress: Progress) -> None:
        """What the site's heartbeat says. Unknown stages and shares outside 0 to 1 are made harmless."""
        tidy = Progress(
            progress.study[:_TEXT_LIMIT],
            progress.task_id[:_TEXT_LIMIT],
            progress.stage if progress.stage in STAGES else "",
            min(max(progress.share, 0.0), 1.0) if progress.share == progress.share else 0.0,
        )
        with self._lock:
            self._sites[site] = replace(self._sites.get(site, _UNKNOWN), progress=tidy)

    def version(self, site: str, software_version: str) -> None:
        with self._lock:
            known = self._sites.get(site, _UNKNOWN)
            self._sites[site] = replace(known, software_version=_printable(software_version))

    def presence(self, site: str) -> Presence:
        with self._lock:
            return self._sites.get(site, _UNKNOWN)

    def forget(self, site: str) -> None:
        """A site that is shut out leaves nothing behind, so that a re-enrolled agent is not a second one."""
        with self._lock:
            self._sites.pop(site, None)

    def is_silent(self, site: str, now: int) -> bool:
        return now >= self.silent_at(site)

    def silent_at(self, site: str) -> int:
        """The moment (unix ms) from which the site counts as silent unless it is heard again."""
        return max(self.presence(site).heard_at, self._started_at) + self._silent_after

    def silent(self, sites: Iterable[str], now: int) -> tuple[str, ...]:
        return tuple(site for site in sorted(sites) if self.is_silent(site, now))

    def _admitted(self, site: str, known: Presence, new: Instance, at: int) -> Instance:
        old = known.instance
        if old is None or (new.id == old.id and new.start >= old.start):
            return new
        if new.id == old.id:
            raise ConflictError(
                f"another agent uses this identity: a later start of the same agent of {site} is connected",
                hint="stop the older process of this agent; one state folder serves one running agent",
            )
        if at - known.heard_at >= self._silent_after:
            return new  # the first agent has been silent long enough to count as gone
        raise ConflictError(
            f"another agent uses this identity: {site} is connected from a second state folder",
            hint="run one agent per site; stop one of the two, or wait until the stopped one counts as "
            f"silent ({self._silent_after // 1000} s) when the site has moved to a new machine",
        )


def _printable(text: str) -> str:
    return "".join(c for c in text[:_TEXT_LIMIT] if c.isprintable())
