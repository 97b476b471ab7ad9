"""Which blobs the rows name: what a backup must hold, and what a deletion must leave to others.

A rejected answer names bytes that went to quarantine, so it names no blob; what a site wrote there instead of
a digest names nothing. Of what a step's result says, only
the two fields that name files are read. Works on the tables of every revision.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain

from sqlalchemy import ColumnElement, Connection, inspect, select, true

from fedmap.files.digests import is_digest
from fedmap_aggregator.store.database.tables import answers, bundles, results
from fedmap_aggregator.store.rows import FINAL

Which = ColumnElement[bool]
_STEP_BLOBS = ("scaler_digest", "reference_digest")


class BlobNames:
    """The names as one transaction sees them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> frozenset[str]:
        """Of every row of every study and bundle."""
        return frozenset(chain(self._of_answers(true()), self._of_results(true()), self._of_bundles()))

    def of_study(self, study: str) -> frozenset[str]:
        """Of a study's own rows; its released bundles are not among them."""
        mine = (self._of_answers(answers.c.study == study), self._of_results(results.c.study == study))
        return frozenset(chain(*mine))

    def of_others(self, study: str) -> frozenset[str]:
        """Of every row but the study's own: what a deletion of the study has to leave."""
        others = (self._of_answers(answers.c.study != study), self._of_results(results.c.study != study))
        return frozenset(chain(*others, self._of_bundles()))

    def refused(self, study: str) -> frozenset[str]:
        """Digests of what the gate refused in a study: the names of its files in quarantine."""
        return self._refused(answers.c.study == study)

    def refused_of_others(self, study: str) -> frozenset[str]:
        """The same of all other studies."""
        return self._refused(answers.c.study != study)

    def _refused(self, which: Which) -> frozenset[str]:
        chosen = select(answers.c.tensors_digest).where(
            which, answers.c.status == "rejected", answers.c.tensors_digest != ""
        )
        return frozenset(filter(is_digest, self._connection.scalars(chosen)))

    def _of_answers(self, which: Which) -> Iterator[str]:
        chosen = select(answers.c.tensors_digest).where(
            which, answers.c.status.in_(sorted(FINAL)), answers.c.tensors_digest != ""
        )
        yield from self._connection.scalars(chosen.distinct())

    def _of_results(self, which: Which) -> Iterator[str]:
        chosen = select(results.c.prior_digest, results.c.content_json).where(which)
        for prior, content in self._connection.execute(chosen):
            step = json.loads(content)
            yield from filter(None, (prior, *(step.get(name, "") for name in _STEP_BLOBS)))

    def _of_bundles(self) -> Iterator[str]:
        if not inspect(self._connection).has_table(bundles.name):
            return
        found = select(bundles.c.file_digest, bundles.c.manifest_digest)
        for row in self._connection.execute(found):
            yield from filter(None, row)  # a file that was deleted is no longer named
