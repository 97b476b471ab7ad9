"""The agent's own figures for Prometheus: work, bytes, outbox, contact. Never one about patients."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge

from fedmap.process.telemetry import GaugeTable

PREFIX = "fedmap_site"
_QUEUED = ("waiting_review", "released")


class SiteMetrics:
    """One registry per agent; the names below are what a dashboard asks for."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.received = Counter(
            "fedmap_site_received_bytes", "Bytes of priors received.", registry=self.registry
        )
        self.sent = Counter("fedmap_site_sent_bytes", "Bytes of tensors sent.", registry=self.registry)
        self.tasks = Counter(
            "fedmap_site_tasks",
            "Tasks by kind and outcome (answered, failed, refused).",
            ("kind", "outcome"),
            registry=self.registry,
        )
        self.seconds = Counter(
            "fedmap_site_stage_seconds",
            "Seconds spent by stage (fetch, work, egress, send).",
            ("stage",),
            registry=self.registry,
        )
        self._outbox = GaugeTable(
            "fedmap_site_outbox_items", "Items in the outbox that have not left, by state.", "state"
        )
        self.registry.register(self._outbox)
        self._oldest_waiting = 0.0  # unix seconds; 0: nothing waits
        waiting = Gauge(
            "fedmap_site_outbox_oldest_waiting_seconds",
            "How long the oldest item has waited for a person's release; 0: none waits.",
            registry=self.registry,
        )
        waiting.set_function(self._waited)
        self.certificate_ends = Gauge(
            "fedmap_site_certificate_end_seconds",
            "When the certificate ends, in Unix seconds.",
            registry=self.registry,
        )
        self.connected = Gauge(
            "fedmap_site_connected",
            "1 while the aggregator answers, 0 while it cannot be reached or refuses this site.",
            registry=self.registry,
        )
        self.last_contact = Gauge(
            "fedmap_site_last_contact_timestamp_seconds",
            "When the aggregator answered a call last; 0: not since the start.",
            registry=self.registry,
        )
        self.show_outbox({}, None)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Adds the time of a block to its stage, also when the block fails."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds.labels(stage).inc(time.monotonic() - began)

    def show_outbox(self, counts: Mapping[str, int], oldest_waiting_unix_ms: int | None) -> None:
        """How many items are in each state, and since when the oldest waits; what has none goes to zero."""
        rows = dict.fromkeys(_QUEUED, 0) | dict(counts)
        self._outbox.replace({(state,): count for state, count in rows.items()})
        self._oldest_waiting = (oldest_waiting_unix_ms or 0) / 1000

    def _waited(self) -> float:
        since = self._oldest_waiting
        return max(0.0, time.time() - since) if since else 0.0
