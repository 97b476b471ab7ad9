"""The one place where the agent's parts are made and joined: for the run loop and for the commands.

Nothing is decided here. What is heavy (torch, pandas, gRPC) is imported where it is first needed, so that a
command which only looks at a file answers at once. Commands that only record take no lock; whoever trains
holds it.
"""

from __future__ import annotations

import datetime
import os
import time
from functools import cached_property
from importlib import metadata
from typing import TYPE_CHECKING

from fedmap.files.durable import make_folder
from fedmap_site.config import SiteConfig
from fedmap_site.identity.files import read_identity, remove_old_generations
from fedmap_site.policy import SitePolicy, read_policy
from fedmap_site.state.audit_log import AuditLog

if TYPE_CHECKING:
    from fedmap.contract.v1.values import AgentInstance
    from fedmap.process.telemetry import TelemetryServer
    from fedmap_site.exit.outbox import Outbox
    from fedmap_site.identity.enrolment import Renewal
    from fedmap_site.link.connection import Connection
    from fedmap_site.loop.agent import Agent
    from fedmap_site.loop.drop_rounds import FileSite
    from fedmap_site.loop.notices import Tell
    from fedmap_site.loop.stopping import Stop
    from fedmap_site.loop.workplace import Workplace
    from fedmap_site.metrics import SiteMetrics
    from fedmap_site.state.studies import SiteState
    from fedmap_site.upkeep.purge import SitePurge


def software_version() -> str:
    return metadata.version("fedmap")


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Site:
    """What every command works with; the state folder is made where it is missing."""

    def __init__(self, config: SiteConfig) -> None:
        self.config = config
        make_folder(config.site.state)
        self.audit = AuditLog(config.site.state / "audit.jsonl", clock_ms)

    @property
    def name(self) -> str:
        return self.config.site.name

    @cached_property
    def state(self) -> SiteState:
        from fedmap_site.state.studies import SiteState

        state = SiteState(self.config.site.state)
        state.prepare()
        return state

    @cached_property
    def outbox(self) -> Outbox:
        from fedmap_site.exit.outbox import Outbox

        return Outbox(self.state.outbox_folder, self.audit, clock_ms)

    def policy(self) -> SitePolicy:
        """As the file says now."""
        return read_policy(self.config.policy.file)

    def connect(self) -> Connection:
        """A connection with the identity in force."""
        from fedmap_site.identity.enrolment import credentials_of, read_authority
        from fedmap_site.link.connection import Connection
        from fedmap_site.link.https import route_of

        authority = read_authority(self.config.aggregator.ca_bundle)
        identity = read_identity(self.config.site.state)
        return Connection(route_of(self.config.aggregator), credentials_of(identity, authority))

    def by_files(self) -> FileSite:
        from fedmap_site.loop.drop_rounds import FileSite

        return FileSite(self.name, read_identity(self.config.site.state), self.state, self.audit)

    def purge(self) -> SitePurge:
        from fedmap_site.upkeep.purge import SitePurge

        return SitePurge(
            self.name,
            software_version(),
            self.state,
            self.outbox,
            self.audit,
            lambda: read_identity(self.config.site.state),
            clock_ms,
        )

    def workplace(self, policy: SitePolicy) -> Workplace:
        from fedmap_site.loop.workplace import Workplace

        return Workplace(self.name, self.state, self.outbox, self.config.data, policy, clock_ms)


def compute_on_one_thread() -> None:
    """Before torch computes: the same bits for any number of cores, and one core of a shared machine."""
    os.environ["OMP_NUM_THREADS"] = "1"
    from fedmap.study.site_step import use_one_thread

    use_one_thread()


class _PolicyWatch:
    """The workplace under the policy as the file says now; a new one where it says something else."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._seen = self._look()
        self._workplace = site.workplace(site.policy())

    def __call__(self) -> Workplace:
        seen = self._look()
        if seen is not None and seen == self._seen:
            return self._workplace
        policy = self._site.policy()
        self._seen = seen
        if policy != self._workplace.policy:
            self._site.audit.append("policy.changed", policy.digest, {"egress": policy.egress})
            self._workplace = self._site.workplace(policy)
        return self._workplace

    def _look(self) -> tuple[int, int, int] | None:
        """Changes whenever the file does; None where it cannot be seen."""
        try:
            found = self._site.config.policy.file.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns


def run_agent(config: SiteConfig, tell: Tell, stop: Stop) -> None:
    """Run until `stop`. The state folder is this agent's alone meanwhile."""
    compute_on_one_thread()
    from fedmap.contract.v1.values import AgentInstance
    from fedmap.process.telemetry import DiskSpace
    from fedmap_site.identity.enrolment import Renewal, read_authority
    from fedmap_site.link.connection import Connection
    from fedmap_site.link.https import route_of
    from fedmap_site.metrics import PREFIX, SiteMetrics

    site = Site(config)
    with site.state.lock:
        watch = _PolicyWatch(site)
        remove_old_generations(config.site.state)
        site.outbox.clear_leftovers()
        renewal = Renewal(config.site.state, site.name, read_authority(config.aggregator.ca_bundle))
        route = route_of(config.aggregator)
        started = site.state.begin()
        in_force = {"version": software_version(), "policy": watch().policy.digest}
        site.audit.append("agent.started", str(started.start), in_force)
        metrics = SiteMetrics()
        metrics.registry.register(DiskSpace(PREFIX, config.site.state))
        instance = AgentInstance(started.id, started.start)
        counted = (metrics.received.inc, metrics.sent.inc, metrics.last_contact.set_to_current_time)
        with Connection(route, renewal.credentials(), *counted) as connection:
            agent = _join(site, instance, connection, renewal, watch, metrics, tell, stop)
            telemetry = _telemetry(config, metrics, agent)
            try:
                agent.run()
            finally:
                if telemetry is not None:
                    telemetry.stop()
        site.audit.append("agent.stopped", str(started.start))


def _join(
    site: Site,
    instance: AgentInstance,
    connection: Connection,
    renewal: Renewal,
    watch: _PolicyWatch,
    metrics: SiteMetrics,
    tell: Tell,
    stop: Stop,
) -> Agent:
    from fedmap_site.loop.agent import Agent
    from fedmap_site.loop.courier import Courier
    from fedmap_site.loop.heartbeat import Heartbeat
    from fedmap_site.loop.network_tasks import NetworkTasks
    from fedmap_site.loop.notices import Notices
    from fedmap_site.loop.status import AgentStatus
    from fedmap_site.upkeep.purge import SiteRetention

    timing = site.config.agent

    def phases() -> dict[str, str]:
        return {study.study: study.phase for study in connection.studies()}

    days = site.config.retention.days_after_end
    notices = Notices(tell)
    heartbeat = Heartbeat(connection.heartbeat, instance, timing.heartbeat_seconds)
    return Agent(
        version=software_version(),
        timing=timing,
        instance=instance,
        connection=connection,
        renewal=renewal,
        heartbeat=heartbeat,
        courier=Courier(site.outbox, connection, heartbeat, metrics, notices, stop),
        tasks=NetworkTasks(site.state, connection, heartbeat, metrics, notices, stop),
        workplace=watch,
        upkeep=SiteRetention(days, site.state, site.purge(), phases, clock_ms),
        audit=site.audit,
        metrics=metrics,
        status=AgentStatus(site.config.site.state, clock_ms),
        tell=notices,
        stop=stop,
        now=now,
    )


def _telemetry(config: SiteConfig, metrics: SiteMetrics, agent: Agent) -> TelemetryServer | None:
    if not config.metrics.listen:
        return None
    from fedmap.process.telemetry import TelemetryServer

    server = TelemetryServer(config.metrics.listen, metrics.registry, agent.missing)
    server.start()
    return server
