"""Looking a metric up among results."""

from __future__ import annotations

from fedmap.metrics import Metric, MetricResult, SkippedMetric

Results = tuple[MetricResult, ...]


def metric(results: Results, name: str) -> Metric:
    found = next(result for result in results if result.name == name)
    assert isinstance(found, Metric), found
    return found


def value(results: Results, name: str) -> float:
    return metric(results, name).value


def reason(results: Results, name: str) -> str:
    found = next(result for result in results if result.name == name)
    assert isinstance(found, SkippedMetric), found
    return found.reason
