"""What the operator does: invite and revoke sites, lead studies, look at them, check the audit log.

Every change is in the audit log in the same transaction. Values in, values out. Files for sites
without a network are `handlers.drop`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from structlog.typing import FilteringBoundLogger

from fedmap.contract.v1 import values
from fedmap.errors import NotFoundError, RejectedError, StateError
from fedmap.names import check_region, check_site_name, check_study_name, shown
from fedmap.process.log import get_logger
from fedmap.study.course.events import Aborted, Event, Paused, Resumed, Started
from fedmap.study.plan.reading import parse_plan
from fedmap.study.terms import StudyTerms
from fedmap_aggregator.identity.callers import Caller, IdentityResolver
from fedmap_aggregator.metrics import AggregatorMetrics
from fedmap_aggregator.rpc.handlers.enrolment import count_sites, token_hash
from fedmap_aggregator.store import SiteRow, Store, Transaction
from fedmap_aggregator.studies.liveness import Liveness
from fedmap_aggregator.studies.records import study_record
from fedmap_aggregator.studies.service import Note, Study, StudyService
from fedmap_aggregator.studies.status_report import MOST_REFUSALS, study_status

_HOUR_MS = 3_600_000
_LONGEST_HOURS = 24 * 90
_REASON = 500

_ACTIONS: Mapping[values.StudyAction, tuple[str, Callable[[int], Event]]] = {
    "start": ("study.start", Started),
    "pause": ("study.pause", Paused),
    "resume": ("study.resume", Resumed),
    "abort": ("study.abort", Aborted),
}


@dataclass(frozen=True)
class Invitations:
    """How sites are invited here."""

    ca_fingerprint: str
    issues_certificates: bool  # False: an external PKI does
    hours: int


@dataclass(frozen=True)
class OperatorHandler:
    """OperatorService, but for files, bundles and deletion."""

    service: StudyService
    store: Store
    liveness: Liveness
    resolver: IdentityResolver
    invitations: Invitations
    metrics: AggregatorMetrics
    clock_ms: Callable[[], int]
    log: FilteringBoundLogger = field(default_factory=get_logger, init=False)

    def invite(self, caller: Caller, request: values.InviteRequest) -> values.InviteResponse:
        """A token for a site; with external PKI the site may join at once and there is no token."""
        site, region = check_site_name(request.site), check_region(request.region)
        if request.tier not in (1, 2, 3):
            raise RejectedError(
                "the tier is none of 1, 2 and 3", hint="1 trains, 2 fine-tunes a released prior, 3 predicts"
            )
        if request.valid_hours > _LONGEST_HOURS:
            raise RejectedError(
                f"an invitation is valid for at most {_LONGEST_HOURS} hours", hint="give fewer hours"
            )
        now, token = self.clock_ms(), secrets.token_urlsafe(32)
        issues = self.invitations.issues_certificates
        expires = now + (request.valid_hours or self.invitations.hours) * _HOUR_MS if issues else 0
        with self.store.transaction() as transaction:
            known = transaction.sites.get(site)
            if not issues:
                row = SiteRow(site, request.tier, region, "active", known.software_version if known else "")
                transaction.sites.upsert(row)
            elif known is None or known.state != "active":
                transaction.sites.upsert(SiteRow(site, request.tier, region, "invited"))
            if issues:
                transaction.invitations.withdraw(site, now)
                transaction.invitations.add(token_hash(token), site, request.tier, region, expires)
            detail = {"tier": str(request.tier), "expires": str(expires)}
            transaction.audit.append(caller.actor, "site.invite", f"site:{site}", detail, now)
        self._standing_changed()
        self.log.info("site_invited", site=site, tier=request.tier, actor=caller.actor)
        return values.InviteResponse(
            token=token if issues else "",
            ca_fingerprint=self.invitations.ca_fingerprint,
            expires_unix_ms=expires,
        )

    def list_sites(self) -> values.ListSitesResponse:
        with self.store.reading() as transaction:
            return values.ListSitesResponse(
                tuple(self._site(transaction, row) for row in transaction.sites.list())
            )

    def revoke_site(self, caller: Caller, request: values.RevokeSiteRequest) -> values.RevokeSiteResponse:
        """Shut a site out: its certificates, its unused tokens, its part in every study."""
        site, now = request.site, self.clock_ms()
        with self.store.transaction() as transaction:
            known = transaction.sites.get(site)
            if known is None:
                raise NotFoundError(f"no site is called {shown(site)}", hint="list the sites")
            if known.state != "revoked":
                transaction.sites.set_state(site, "revoked")
                count = transaction.certificates.revoke_all("site", site, now)
                transaction.invitations.withdraw(site, now)
                detail = {"reason": request.reason[:_REASON], "certificates": str(count)}
                transaction.audit.append(caller.actor, "site.revoke", f"site:{site}", detail, now)
        self._standing_changed()
        self.service.leave_all(site, "revoked by the operator")
        self.liveness.forget(site)
        self.log.info("site_revoked", site=site, actor=caller.actor)
        return values.RevokeSiteResponse()

    def create_study(self, caller: Caller, request: values.CreateStudyRequest) -> values.CreateStudyResponse:
        plan = parse_plan(request.plan_toml, "the study plan")
        check_study_name(plan.study.name)
        terms = StudyTerms.of_plan(plan, request.rounds or None, request.seed)
        sites = self._invited(request.sites)
        if len(sites) < plan.rounds.quorum:
            raise StateError(
                f"{len(sites)} T1 site(s) would be invited, the plan's quorum is {plan.rounds.quorum}",
                hint="invite more sites with tier 1 first, or lower rounds.quorum in the plan",
            )
        study = self.service.create(terms, sites, caller.actor)
        return values.CreateStudyResponse(
            study.state.study, study.terms.digest, tuple(sorted(study.state.members))
        )

    def control_study(
        self, caller: Caller, request: values.ControlStudyRequest
    ) -> values.ControlStudyResponse:
        known = _ACTIONS.get(request.action)
        if known is None:
            raise RejectedError("the action is unknown", hint="use start, pause, resume or abort")
        action, event = known
        note = Note(caller.actor, action, request.study)
        study = self.service.apply(request.study, event(self.clock_ms()), note)
        self.log.info("study_controlled", study=request.study, action=action, actor=caller.actor)
        return values.ControlStudyResponse(study.state.phase)

    def get_status(self, request: values.GetStatusRequest) -> values.GetStatusResponse:
        studies = (self.service.study(request.study),) if request.study else self.service.studies()
        now = self.clock_ms()
        with self.store.reading() as transaction:
            return values.GetStatusResponse(
                tuple(self._status(transaction, study, now) for study in studies), now
            )

    def verify_audit(self) -> values.VerifyAuditResponse:
        with self.store.reading() as transaction:
            head = transaction.audit.verify()
        return values.VerifyAuditResponse(head.entries, head.hash)

    def _standing_changed(self) -> None:
        self.resolver.forget()
        count_sites(self.store, self.metrics)

    def _invited(self, named: tuple[str, ...]) -> tuple[str, ...]:
        with self.store.reading() as transaction:
            known = {row.name: row for row in transaction.sites.list()}
        if not named:
            return tuple(name for name, row in known.items() if row.tier == 1 and row.state != "revoked")
        for name in named:
            row = known.get(name)
            if row is None:
                raise NotFoundError(
                    f"no site is called {shown(name)}", hint="list the sites; invite it first"
                )
            if row.tier != 1 or row.state == "revoked":
                what = "revoked" if row.state == "revoked" else f"a T{row.tier} site"
                raise RejectedError(f"{name} is {what}", hint="only T1 sites that are not revoked take part")
        return tuple(sorted(set(named)))

    def _site(self, transaction: Transaction, row: SiteRow) -> values.Site:
        valid = [c for c in transaction.certificates.list_of("site", row.name) if c.revoked_at is None]
        presence = self.liveness.presence(row.name)
        return values.Site(
            name=row.name,
            tier=row.tier,
            region=row.region,
            state=row.state,
            certificate_ends_unix_ms=max((c.not_after for c in valid), default=0),
            last_seen_unix_ms=presence.heard_at,
            software_version=presence.software_version or row.software_version,
            stage=presence.progress.stage if presence.heard_at else "",
        )

    def _status(self, transaction: Transaction, study: Study, now: int) -> values.StudyStatus:
        record = study_record(transaction, study.terms, study.state, MOST_REFUSALS)
        presence = {site: self.liveness.presence(site) for site in study.state.members}
        return study_status(study, record, presence, now)
