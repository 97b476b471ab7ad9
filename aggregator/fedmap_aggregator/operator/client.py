"""The operator's calls over mutual TLS: a profile in, typed messages out, errors of the one tree.

Every call works from any machine that reaches the aggregator's port. This module dials, streams files and
translates failures; it decides nothing and prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeVar

import grpc

from fedmap.contract.v1 import operator_pb2 as pb
from fedmap.contract.v1.operator_pb2_grpc import OperatorServiceStub
from fedmap.files.durable import DurableWriter
from fedmap.transport.channel_options import client_options
from fedmap.transport.chunks import file_chunks
from fedmap.transport.status import raise_typed
from fedmap_aggregator.identity.profile import OperatorProfile

Action = Literal["start", "pause", "resume", "abort"]
_ACTIONS: dict[Action, pb.StudyAction.ValueType] = {
    "start": pb.STUDY_ACTION_START,
    "pause": pb.STUDY_ACTION_PAUSE,
    "resume": pb.STUDY_ACTION_RESUME,
    "abort": pb.STUDY_ACTION_ABORT,
}
# Short calls answer from memory or one database read; a file of a large model takes its time.
_CALL_SECONDS = 30.0
_FILE_SECONDS = 3600.0
# The standard health service, as bytes: an empty request asks about the whole server; field 1 = 1 is SERVING.
_HEALTH = "/grpc.health.v1.Health/Check"
_SERVING = b"\x08\x01"
_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")
_Part = TypeVar("_Part", pb.ExportDropResponse, pb.DownloadBundleResponse)


class OperatorClient:
    """One operator's connection. Use it in a `with` block."""

    def __init__(self, profile: OperatorProfile) -> None:
        credentials = grpc.ssl_channel_credentials(
            root_certificates=profile.ca.encode(),
            private_key=profile.key.encode(),
            certificate_chain=profile.certificate.encode(),
        )
        self._channel = grpc.secure_channel(
            profile.address, credentials, options=client_options(profile.proxy)
        )
        self._stub = OperatorServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def invite(self, site: str, tier: int, region: str, valid_hours: int = 0) -> pb.InviteResponse:
        """A one-time token for a site; 0 hours: the aggregator's setting."""
        request = pb.InviteRequest(site=site, tier=tier, region=region, valid_hours=valid_hours)
        return _asked(self._stub.Invite, request)

    def sites(self) -> tuple[pb.Site, ...]:
        """All sites, sorted by name."""
        return tuple(_asked(self._stub.ListSites, pb.ListSitesRequest()).sites)

    def revoke(self, site: str, reason: str) -> None:
        """Shut a site out from its next call on."""
        _asked(self._stub.RevokeSite, pb.RevokeSiteRequest(site=site, reason=reason))

    def create_study(
        self, plan_toml: str, rounds: int, seed: int, sites: Iterable[str]
    ) -> pb.CreateStudyResponse:
        """Put a study up for approval; 0 rounds: as the plan says; no sites: all T1 sites."""
        request = pb.CreateStudyRequest(plan_toml=plan_toml, rounds=rounds, seed=seed, sites=list(sites))
        return _asked(self._stub.CreateStudy, request)

    def control(self, study: str, action: Action) -> str:
        """Start, pause, resume or abort a study; the phase it is in afterwards."""
        request = pb.ControlStudyRequest(study=study, action=_ACTIONS[action])
        return _asked(self._stub.ControlStudy, request).phase

    def status(self, study: str = "") -> pb.GetStatusResponse:
        """Where one study stands, or all of them."""
        return _asked(self._stub.GetStatus, pb.GetStatusRequest(study=study))

    def verify_audit(self) -> pb.VerifyAuditResponse:
        """Have the aggregator check its audit log."""
        return _asked(self._stub.VerifyAudit, pb.VerifyAuditRequest(), _FILE_SECONDS)

    def export_drop(self, study: str, site: str, out: Path) -> int:
        """Write the file for a site without a network; its size. Nothing is left behind on failure."""
        request = pb.ExportDropRequest(study=study, site=site)
        return _received(self._stub.ExportDrop, request, out, 0o600)[0]

    def import_drop(self, path: Path) -> pb.ImportDropResponse:
        """Send a file that such a site made."""
        parts = (pb.ImportDropRequest(chunk=chunk) for chunk in file_chunks(path))
        return _typed(lambda: self._stub.ImportDrop(parts, timeout=_FILE_SECONDS))

    def release(
        self, study: str, round_number: int = 0, tier: int = 0, expires_unix_ms: int = 0
    ) -> pb.ReleaseBundleResponse:
        """Make a signed bundle; 0 stands for the last round, tier 2 and the aggregator's own validity."""
        request = pb.ReleaseBundleRequest(
            study=study, round=round_number, tier=tier, expires_unix_ms=expires_unix_ms
        )
        return _asked(self._stub.ReleaseBundle, request, _FILE_SECONDS)

    def released(self, name: str = "", version: int = 0) -> pb.ListReleasedResponse:
        """All bundles, those of one name, or one version with its card."""
        return _asked(self._stub.ListReleased, pb.ListReleasedRequest(name=name, version=version))

    def withdraw(self, name: str, version: int, reason: str) -> pb.WithdrawBundleResponse:
        """Take a bundle back."""
        request = pb.WithdrawBundleRequest(name=name, version=version, reason=reason)
        return _asked(self._stub.WithdrawBundle, request)

    def download_link(self, name: str, version: int, valid_hours: int = 0) -> pb.MakeDownloadLinkResponse:
        """A one-time link for a browser; 0 hours: the aggregator's setting."""
        request = pb.MakeDownloadLinkRequest(name=name, version=version, valid_hours=valid_hours)
        return _asked(self._stub.MakeDownloadLink, request)

    def download(self, name: str, version: int, out: Path) -> tuple[int, str]:
        """Write a bundle; its size and SHA-256. Nothing is left behind on failure."""
        request = pb.DownloadBundleRequest(name=name, version=version)
        return _received(self._stub.DownloadBundle, request, out, 0o644)

    def purge(self, study: str, *, with_bundles: bool, dry_run: bool) -> pb.PurgeStudyResponse:
        """Delete an ended study's content, or count what would be deleted."""
        request = pb.PurgeStudyRequest(study=study, with_bundles=with_bundles, dry_run=dry_run)
        return _asked(self._stub.PurgeStudy, request, _FILE_SECONDS)

    def deletion(self, study: str) -> bytes:
        """The certificate of a study's deletion."""
        parts = self._stub.FetchDeletion(pb.FetchDeletionRequest(study=study), timeout=_FILE_SECONDS)
        return _typed(lambda: b"".join(part.chunk for part in parts))

    def healthy(self, seconds: float) -> bool:
        """Whether the health service says that the aggregator is serving; not knowing is an error."""
        check: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(_HEALTH)
        return _asked(check, b"", seconds) == _SERVING


def _asked(
    method: grpc.UnaryUnaryMultiCallable[_Request, _Answer], request: _Request, seconds: float = _CALL_SECONDS
) -> _Answer:
    return _typed(lambda: method(request, timeout=seconds))


def _received(
    method: grpc.UnaryStreamMultiCallable[_Request, _Part], request: _Request, out: Path, mode: int
) -> tuple[int, str]:
    """Writes what comes in parts to a file; its size and SHA-256."""

    def receive() -> tuple[int, str]:
        with DurableWriter(out.parent, mode=mode) as writer:
            for part in method(request, timeout=_FILE_SECONDS):
                writer.write(part.chunk)
            writer.commit(out)
            return writer.size, writer.digest

    return _typed(receive)


def _typed(call: Callable[[], _Answer]) -> _Answer:
    try:
        return call()
    except grpc.RpcError as error:
        raise_typed(error)
