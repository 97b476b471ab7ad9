"""What the aggregator counts for Prometheus. Counters and gauges only: no study logic, no HTTP.

Labels are names of studies, sites, stages, calls and error codes, never of patients, files or values. Sites
and studies are those that the operator has made, so their number bounds the series. What a study's own state
says (phase, answers, members) is not kept here: `study_metrics` reads it when it is asked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from fedmap.process.telemetry import GaugeTable
from fedmap.study.record import RoundSummary

PREFIX = "fedmap_aggregator"
_SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0, 1800.0)


@dataclass(frozen=True)
class Progress:
    """How far a study has come, as far as its state does not say it."""

    at: int = 0  # unix ms: a step closed, an answer that stands, a start or a resume; 0: not yet
    newest: RoundSummary | None = None  # the round that was closed last
    own_metric: float | None = None  # of the newest round that measured it
    global_metric: float | None = None


class AggregatorMetrics:
    """One registry of its own, so that two servers in one process do not meet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._rounds = self._counter("rounds_completed", "Rounds whose prior is computed", "study")
        self._sites = self._gauge("sites", "Sites by state: invited, active or revoked", "state")
        self._bytes = self._counter("bytes", "Bytes of tensors and files", "direction")
        self._rejected = self._counter(
            "rejected_answers",
            "Answers that the gate refused, by what was wrong: header, tensors or content",
            *("study", "site", "reason"),
        )
        self._failed = self._counter(
            "failed_answers", "Answers in which a site says that it could not do it", "study", "site", "code"
        )
        self._estimation_failures = self._counter(
            "estimation_failures", "Computations of the centre that failed", "study"
        )
        self._calls = self._counter("calls", "Calls by name and outcome", "rpc", "code")
        self._running = self._gauge("running_calls", "Calls in progress, long polls included")
        self._certificate = self._gauge(
            "server_certificate_ends_timestamp_seconds", "When the server's certificate ends"
        )
        self._site_certificates = GaugeTable(
            f"{PREFIX}_site_certificate_ends_timestamp_seconds",
            "When the newest certificate of an active site ends; none with an external PKI",
            "site",
        )
        self.registry.register(self._site_certificates)
        self._stage = Histogram(
            f"{PREFIX}_stage_seconds",
            "Seconds by stage: receive, gate, store or estimate",
            ("stage",),
            registry=self.registry,
            buckets=_SECONDS,
        )
        self._progress: dict[str, Progress] = {}
        self._progressing = threading.Lock()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", text, labels, registry=self.registry)

    def round_completed(self, study: str) -> None:
        self._rounds.labels(study).inc()

    def progressed(self, study: str, at: int) -> None:
        """Something happened that brings the study nearer to its end (unix ms)."""
        with self._progressing:
            known = self.progress(study)
            self._progress[study] = replace(known, at=max(known.at, at))

    def round_closed(self, study: str, summary: RoundSummary) -> None:
        """The figures of a closed round. What it did not measure keeps the value of the round before."""
        own, shared = summary.personal_metric, summary.global_metric
        with self._progressing:
            known = self.progress(study)
            self._progress[study] = replace(
                known,
                newest=summary,
                own_metric=known.own_metric if own is None else own,
                global_metric=known.global_metric if shared is None else shared,
            )

    def forget(self, study: str) -> None:
        """The figures of a study whose content was deleted."""
        with self._progressing:
            self._progress.pop(study, None)

    def progress(self, study: str) -> Progress:
        return self._progress.get(study, Progress())

    def sites(self, by_state: Mapping[str, int], certificate_ends: Mapping[str, float]) -> None:
        """How many there are, and when the certificate of each active one ends (unix seconds)."""
        for state in ("invited", "active", "revoked"):
            self._sites.labels(state).set(by_state.get(state, 0))
        self._site_certificates.replace({(site,): ends for site, ends in certificate_ends.items()})

    def received(self, size: int) -> None:
        self._bytes.labels("in").inc(size)

    def sent(self, size: int) -> None:
        self._bytes.labels("out").inc(size)

    def sending(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """The same chunks, each counted as it goes."""
        for chunk in chunks:
            self.sent(len(chunk))
            yield chunk

    def rejected(self, study: str, site: str, reason: str) -> None:
        self._rejected.labels(study, site, reason).inc()

    def failed(self, study: str, site: str, code: str) -> None:
        self._failed.labels(study, site, code).inc()

    def estimation_failed(self, study: str) -> None:
        self._estimation_failures.labels(study).inc()

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
