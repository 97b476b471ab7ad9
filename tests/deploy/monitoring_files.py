"""What deploy/monitoring holds, read for tests: expressions, names, panels; and the metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedmap.process.telemetry import DiskSpace
from fedmap_aggregator.metrics import PREFIX as AGGREGATOR
from fedmap_aggregator.metrics import AggregatorMetrics, Progress
from fedmap_aggregator.studies.liveness import Presence
from fedmap_aggregator.study_metrics import StudyMetrics
from fedmap_site.metrics import PREFIX as SITE
from fedmap_site.metrics import SiteMetrics

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
DASHBOARD = MONITORING / "grafana" / "dashboards" / "fedmap.json"
_METRIC = re.compile(r"\bfedmap_[a-z_]+")


def program(name: str) -> str:
    """The path of a real tool, or the test is skipped with what is missing."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: apt-get install prometheus")
    return found


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def alerts() -> list[dict[str, Any]]:
    """The rules of alerts.yml."""
    return [rule for group in read_yaml(MONITORING / "alerts.yml")["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return read


def queries() -> list[str]:
    """Of every panel, as Prometheus gets them, with all studies chosen."""
    targets = [target for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    return [one["expr"].replace("$study", ".*").replace("$__rate_interval", "1m") for one in targets]


def used_metrics(expressions: Iterable[str]) -> set[str]:
    return {name for expression in expressions for name in _METRIC.findall(expression)}


def existing_metrics() -> set[str]:
    """Names as they are written in a query: all that both services can show."""
    centre, site = AggregatorMetrics(), SiteMetrics()
    centre.registry.register(
        StudyMetrics(lambda: (), lambda _: Presence(heard_at=0), lambda _: Progress(), lambda: 0)
    )
    centre.registry.register(DiskSpace(AGGREGATOR, ROOT))
    site.registry.register(DiskSpace(SITE, ROOT))
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    families = [*centre.registry.collect(), *site.registry.collect()]
    return {one.name + suffix for one in families for suffix in suffixes.get(one.type, ("",))}
