"""The operator's calls over mutual TLS: a profile in, values out, errors of the one tree.

Every call works from any machine that reaches the aggregator's port. It decides nothing and prints nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from fedmap.contract.v1 import values
from fedmap.files.durable import DurableWriter
from fedmap.transport.chunks import file_chunks, serialise_chunk
from fedmap.transport.client import TRANSFER_SECONDS, ContractClient, Credentials, Route
from fedmap_aggregator.identity.profile import OperatorProfile

Action = Literal["start", "pause", "resume", "abort"]


class OperatorClient(ContractClient):
    """One operator's connection. Use it in a `with` block."""

    def __init__(self, profile: OperatorProfile) -> None:
        pems = (profile.certificate, profile.key, profile.ca)
        super().__init__(Route(profile.address, profile.proxy), Credentials(*(pem.encode() for pem in pems)))

    def invite(self, site: str, tier: int, region: str, valid_hours: int = 0) -> values.InviteResponse:
        """A one-time token for a site; 0 hours: the aggregator's setting."""
        return self.ask(values.InviteRequest(site, tier, region, valid_hours), values.InviteResponse)

    def sites(self) -> tuple[values.Site, ...]:
        """All sites, sorted by name."""
        return self.ask(values.ListSitesRequest(), values.ListSitesResponse).sites

    def revoke(self, site: str, reason: str) -> None:
        """Shut a site out from its next call on."""
        self.ask(values.RevokeSiteRequest(site, reason), values.RevokeSiteResponse)

    def create_study(
        self, plan_toml: str, rounds: int, seed: int, sites: Iterable[str]
    ) -> values.CreateStudyResponse:
        """Put a study up for approval; 0 rounds: as the plan says; no sites: all T1 sites."""
        request = values.CreateStudyRequest(plan_toml, rounds, seed, tuple(sites))
        return self.ask(request, values.CreateStudyResponse)

    def control(self, study: str, action: Action) -> str:
        """Start, pause, resume or abort a study; the phase it is in afterwards."""
        return self.ask(values.ControlStudyRequest(study, action), values.ControlStudyResponse).phase

    def status(self, study: str = "") -> values.GetStatusResponse:
        """Where one study stands, or all of them."""
        return self.ask(values.GetStatusRequest(study), values.GetStatusResponse)

    def verify_audit(self) -> values.VerifyAuditResponse:
        """Have the aggregator check its audit log."""
        return self.ask(values.VerifyAuditRequest(), values.VerifyAuditResponse, TRANSFER_SECONDS)

    def export_drop(self, study: str, site: str, out: Path) -> int:
        """Write the file for a site without a network; its size. Nothing is left behind on failure."""
        return self._fetched(values.ExportDropRequest(study, site), out).size

    def import_drop(self, path: Path) -> values.ImportDropResponse:
        """Send a file that such a site made."""
        parts = map(serialise_chunk, file_chunks(path))
        return self.upload(values.ImportDropRequest, parts, values.ImportDropResponse)

    def release(
        self, study: str, round_number: int = 0, tier: int = 0, expires_unix_ms: int = 0
    ) -> values.ReleaseBundleResponse:
        """Make a signed bundle; 0 stands for the last round, tier 2 and the aggregator's own validity."""
        request = values.ReleaseBundleRequest(study, round_number, tier, expires_unix_ms)
        return self.ask(request, values.ReleaseBundleResponse, TRANSFER_SECONDS)

    def released(self, name: str = "", version: int = 0) -> values.ListReleasedResponse:
        """All bundles, those of one name, or one version with its card."""
        return self.ask(values.ListReleasedRequest(name, version), values.ListReleasedResponse)

    def withdraw(self, name: str, version: int, reason: str) -> values.WithdrawBundleResponse:
        """Take a bundle back."""
        return self.ask(values.WithdrawBundleRequest(name, version, reason), values.WithdrawBundleResponse)

    def download_link(self, name: str, version: int, valid_hours: int = 0) -> values.MakeDownloadLinkResponse:
        """A one-time link for a browser; 0 hours: the aggregator's setting."""
        request = values.MakeDownloadLinkRequest(name, version, valid_hours)
        return self.ask(request, values.MakeDownloadLinkResponse)

    def download(self, name: str, version: int, out: Path) -> tuple[int, str]:
        """Write a bundle; its size and SHA-256. Nothing is left behind on failure."""
        written = self._fetched(values.DownloadBundleRequest(name, version), out, mode=0o644)
        return written.size, written.digest

    def purge(self, study: str, *, with_bundles: bool, dry_run: bool) -> values.PurgeStudyResponse:
        """Delete an ended study's content, or count what would be deleted."""
        request = values.PurgeStudyRequest(study, with_bundles, dry_run)
        return self.ask(request, values.PurgeStudyResponse, TRANSFER_SECONDS)

    def deletion(self, study: str) -> bytes:
        """The certificate of a study's deletion."""
        return b"".join(self.chunks(values.FetchDeletionRequest(study)))

    def _fetched(self, request: object, out: Path, mode: int = 0o600) -> DurableWriter:
        with DurableWriter(out.parent, mode) as writer:
            for chunk in self.chunks(request):
                writer.write(chunk)
            writer.commit(out)
        return writer
