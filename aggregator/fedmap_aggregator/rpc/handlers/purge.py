"""Deleting a study's content, for the operator: messages in, messages out. What is deleted is `purge`."""

from __future__ import annotations

from collections.abc import Iterator

from fedmap.contract.v1 import operator_pb2 as pb
from fedmap.errors import StateError
from fedmap.names import check_study_name
from fedmap.transport.channel_options import CHUNK
from fedmap.trust.deletion import DeletionRecord
from fedmap_aggregator.identity.callers import Caller
from fedmap_aggregator.upkeep.purge import KEPT_BUNDLE, StudyPurge


class PurgeHandler:
    """The operator's calls about deletion."""

    def __init__(self, purge: StudyPurge) -> None:
        self._purge = purge

    def purge(self, caller: Caller, request: pb.PurgeStudyRequest) -> pb.PurgeStudyResponse:
        """Deletes, or counts what would be deleted. A study that was purged before answers as it was then."""
        study = check_study_name(request.study)
        if request.dry_run:
            return _told(self._purge.plan(study, request.with_bundles))
        return _told(self._purge.purge(request.study, request.with_bundles, caller.actor))

    def fetch(self, request: pb.FetchDeletionRequest) -> Iterator[bytes]:
        """The chunks of a certificate; the server makes messages of them."""
        row = self._purge.deletion(check_study_name(request.study))
        if row is None or not row.certificate:
            raise StateError(
                f"nothing of {request.study} was deleted", hint="run `fedmap-aggregator purge` first"
            )
        data = row.certificate.encode()
        return (data[start : start + CHUNK] for start in range(0, len(data), CHUNK))


def _told(record: DeletionRecord) -> pb.PurgeStudyResponse:
    return pb.PurgeStudyResponse(
        study=record.study,
        answers=record.rows["answers"],
        results=record.rows["results"],
        refusals=record.rows["refusals"],
        files=record.files,
        bytes=record.bytes,
        bundles_kept=[text.removeprefix(KEPT_BUNDLE) for text in record.kept if text.startswith(KEPT_BUNDLE)],
        bundles_deleted=[one.name for one in record.deleted if one.kind == "bundle"],
        done=record.finished_unix_ms > 0,
        finished_unix_ms=record.finished_unix_ms,
    )
