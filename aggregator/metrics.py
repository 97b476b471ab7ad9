"""What the aggregator counts for Prometheus. Counters and gauges only: no study logic, no HTTP.

Labels are names of studies, stages, calls and error codes, never of patients, files or values. How many
sites there are bounds nothing here: sites are counted by state, not listed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_PHASES = (
    "approvals",
    "statistics",
    "initialisation",
    "rounds",
    "rule",
    "evaluation",
    "complete",
    "aborted",
)
_SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0, 1800.0)


class AggregatorMetrics:
    """One registry of its own, so that two servers in one process do not meet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._rounds = self._counter("rounds_completed", "Rounds whose prior is computed", "study")
        self._phase = self._gauge("study_phase", "1 for the phase a study is in", "study", "phase")
        self._sites = self._gauge("sites", "Sites by state: invited, active or revoked", "state")
        self._silent = self._gauge("silent_sites", "Members without a sign of life in the limit", "study")
        self._late = self._gauge("late_sites", "Members past the deadline of the open task", "study")
        self._open = self._gauge("open_tasks", "Tasks that wait for answers", "study")
        self._bytes = self._counter("bytes", "Bytes of tensors and files", "direction")
        self._rejected = self._counter("rejected_answers", "Answers refused, by reason", "code")
        self._calls = self._counter("calls", "Calls by name and outcome", "rpc", "code")
        self._running = self._gauge("running_calls", "Calls in progress, long polls included")
        self._certificate = self._gauge(
            "server_certificate_ends_timestamp_seconds", "When the server's certificate ends"
        )
        self._stage = Histogram(
            "fedmap_aggregator_stage_seconds",
            "Seconds by stage: receive, gate, store or estimate",
            ("stage",),
            registry=self.registry,
            buckets=_SECONDS,
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"fedmap_aggregator_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"fedmap_aggregator_{name}", text, labels, registry=self.registry)

    def round_completed(self, study: str) -> None:
        self._rounds.labels(study).inc()

    def study(self, study: str, phase: str, *, silent: int, late: int, is_open: bool) -> None:
        """Where one study stands now."""
        for name in _PHASES:
            self._phase.labels(study, name).set(name == phase)
        self._silent.labels(study).set(silent)
        self._late.labels(study).set(late)
        self._open.labels(study).set(is_open)

    def sites(self, by_state: Mapping[str, int]) -> None:
        for state in ("invited", "active", "revoked"):
            self._sites.labels(state).set(by_state.get(state, 0))

    def received(self, size: int) -> None:
        self._bytes.labels("in").inc(size)

    def sent(self, size: int) -> None:
        self._bytes.labels("out").inc(size)

    def rejected(self, code: str) -> None:
        self._rejected.labels(code).inc()

    def call_started(self) -> None:
        self._running.inc()

    def call_ended(self, rpc: str, code: str) -> None:
        self._running.dec()
        self._calls.labels(rpc, code).inc()

    def certificate_ends(self, unix_seconds: float) -> None:
        self._certificate.set(unix_seconds)

    def took(self, stage: str, seconds: float) -> None:
        self._stage.labels(stage).observe(seconds)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Seconds of the block, also when it fails."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.took(stage, time.perf_counter() - began)
