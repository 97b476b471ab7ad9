"""What the configuration says about deleting by itself, done once an hour: purges and prunes that are due.

Off unless asked for. How something is deleted is `purge`; every deletion is in the audit log.
"""

from __future__ import annotations

from collections.abc import Callable

from fedmap.errors import FedmapError
from fedmap.process.log import get_logger
from fedmap_aggregator.config import RetentionSection
from fedmap_aggregator.store import Store
from fedmap_aggregator.studies.service import Study, StudyService
from fedmap_aggregator.upkeep.purge import StudyPurge

_DAY_MS = 86_400_000
ACTOR = "retention"


class Retention:
    """Looks at all studies when it is told to."""

    def __init__(
        self,
        settings: RetentionSection,
        service: StudyService,
        store: Store,
        purge: StudyPurge,
        clock_ms: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._service = service
        self._store = store
        self._purge = purge
        self._clock_ms = clock_ms
        self._log = get_logger()

    def run(self) -> None:
        """Delete what is due. An error (a backup under way, a disk) leaves that study for the next hour."""
        for study in self._service.studies():
            if study.state.purged_at is not None:
                continue
            try:
                self._look_at(study)
            except FedmapError as error:
                self._log.error("retention_failed", study=study.state.study, exc_info=error)

    def _look_at(self, study: Study) -> None:
        if self._is_due(study):
            self._purge.purge(study.state.study, with_bundles=False, actor=ACTOR)
        elif self._settings.keep_rounds:
            self._purge.prune(study.state.study, self._settings.keep_rounds)

    def _is_due(self, study: Study) -> bool:
        """A study ends with its last entry in the audit log, whatever that is."""
        if not self._settings.days_after_end or not study.state.over:
            return False
        with self._store.reading() as transaction:
            last = transaction.audit.last_about(study.state.study)
        return last is not None and last + self._settings.days_after_end * _DAY_MS <= self._clock_ms()
