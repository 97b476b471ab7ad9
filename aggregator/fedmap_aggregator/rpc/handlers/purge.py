"""Deleting a study's content, for the operator: values in, values out. What is deleted is `purge`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedmap.contract.v1 import values
from fedmap.errors import StateError
from fedmap.names import check_study_name
from fedmap.transport.chunks import byte_chunks
from fedmap.trust.deletion import DeletionRecord
from fedmap_aggregator.identity.callers import Caller
from fedmap_aggregator.upkeep.purge import KEPT_BUNDLE, StudyPurge


@dataclass(frozen=True)
class PurgeHandler:
    """The operator's calls about deletion."""

    studies: StudyPurge

    def purge(self, caller: Caller, request: values.PurgeStudyRequest) -> values.PurgeStudyResponse:
        """Deletes, or counts what would be deleted. A study that was purged before answers as it was then."""
        study = check_study_name(request.study)
        if request.dry_run:
            return _told(self.studies.plan(study, request.with_bundles))
        return _told(self.studies.purge(request.study, request.with_bundles, caller.actor))

    def fetch(self, request: values.FetchDeletionRequest) -> Iterator[bytes]:
        """The chunks of a certificate; the server makes messages of them."""
        row = self.studies.deletion(check_study_name(request.study))
        if row is None or not row.certificate:
            raise StateError(
                f"nothing of {request.study} was deleted", hint="run `fedmap-aggregator purge` first"
            )
        return byte_chunks(row.certificate.encode())


def _told(record: DeletionRecord) -> values.PurgeStudyResponse:
    return values.PurgeStudyResponse(
        study=record.study,
        answers=record.rows["answers"],
        results=record.rows["results"],
        refusals=record.rows["refusals"],
        files=record.files,
        bytes=record.bytes,
        bundles_kept=tuple(
            text.removeprefix(KEPT_BUNDLE) for text in record.kept if text.startswith(KEPT_BUNDLE)
        ),
        bundles_deleted=tuple(one.name for one in record.deleted if one.kind == "bundle"),
        done=record.finished_unix_ms > 0,
        finished_unix_ms=record.finished_unix_ms,
    )
