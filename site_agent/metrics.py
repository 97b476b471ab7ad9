"""The agent's own figures for Prometheus: work, bytes, outbox, certificate. Never a figure about patients."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge


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
        self.outbox = Gauge(
            "fedmap_site_outbox_items", "Items in the outbox by state.", ("state",), registry=self.registry
        )
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

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Adds the time of a block to its stage, also when the block fails."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds.labels(stage).inc(time.monotonic() - began)

    def show_outbox(self, counts: Mapping[str, int]) -> None:
        """How many items are in each state; states without any go to zero."""
        self.outbox.clear()
        for state, count in counts.items():
            self.outbox.labels(state).set(count)
