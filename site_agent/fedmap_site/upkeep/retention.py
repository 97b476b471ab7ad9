"""What the site's configuration says about deleting by itself, looked at once an hour by the running agent.

A study counts as over from the moment at which the agent first sees that it has ended, or that the site has
left it; that moment is kept on the disk. Off unless asked for. How something is deleted is `purge`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedmap.process.log import get_logger
from fedmap_site.state.audit_log import Clock
from fedmap_site.state.studies import SiteState
from fedmap_site.upkeep.purge import SitePurge

ENDED = frozenset({"complete", "aborted"})
"""Phases of a study in which nobody asks for anything any more."""
ACTOR = "retention"
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS

Phases = Callable[[], Mapping[str, str]]
"""The phase of each study that the aggregator offers to this site."""


class SiteRetention:
    """Call it in every turn; it works once an hour, and first finishes what a stop interrupted."""

    def __init__(
        self, days_after_end: int, state: SiteState, purge: SitePurge, phases: Phases, clock: Clock
    ) -> None:
        self._days = days_after_end
        self._state = state
        self._purge = purge
        self._phases = phases
        self._clock = clock
        self._next = 0

    def __call__(self) -> None:
        now = self._clock()
        if now < self._next:
            return
        self._next = now + _HOUR_MS
        for study in self._purge.interrupted():
            if self._state.has_left(study):
                self._delete(study)
        if not self._days:
            return
        phases = self._phases()
        for study in self._state.known():
            if not self._state.has_left(study) and phases.get(study) not in ENDED:
                continue
            if self._state.seen_over(study, now) + self._days * _DAY_MS <= now:
                self._state.leave(study)
                self._delete(study)

    def _delete(self, study: str) -> None:
        self._purge.purge(study, ACTOR)
        get_logger().info("study_purged", study=study)
