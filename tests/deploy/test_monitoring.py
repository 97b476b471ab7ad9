"""Dashboard and alerts ask for metrics that exist, rules do what they say, the guide explains them all."""

from __future__ import annotations

import re
import subprocess
from itertools import combinations
from typing import Any

import pytest

from tests.deploy.monitoring_files import (
    MONITORING,
    ROOT,
    alerts,
    dashboard,
    existing_metrics,
    program,
    queries,
    read_yaml,
    used_metrics,
)

GUIDE = (ROOT / "docs" / "operator.md").read_text()
UNITS = {"short", "s", "percentunit", "bytes", "Bps"}  # names of Grafana's own
COLUMNS = 24  # of Grafana's grid
KINDS = {"row", "stat", "table", "timeseries", "bargauge"}


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program("promtool"), *arguments], cwd=MONITORING, capture_output=True, text=True, check=False
    )


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = dashboard()["panels"]
    return found


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)
def test_no_alert_waits_for_a_metric_that_does_not_exist(alert: Any) -> None:
    assert used_metrics([alert.expression]) <= existing_metrics().keys()
    assert alert.severity in ("critical", "warning")


def test_no_panel_asks_for_a_metric_that_does_not_exist() -> None:
    variables = [str(one["definition"]) for one in dashboard()["templating"]["list"]]
    used = used_metrics([query.expression for query in queries()] + variables)
    assert used <= existing_metrics().keys()


def test_the_dashboard_shows_what_an_operator_has_to_see() -> None:
    shown = used_metrics(query.expression for query in queries())
    assert shown >= {
        "fedmap_aggregator_study_rounds_done",
        "fedmap_aggregator_task_answers",
        "fedmap_aggregator_task_answers_needed",
        "fedmap_aggregator_member_state",
        "fedmap_aggregator_member_lateness_seconds",
        "fedmap_aggregator_round_loss",
        "fedmap_aggregator_round_metric",
        "fedmap_aggregator_rejected_answers_total",
        "fedmap_aggregator_site_certificate_ends_timestamp_seconds",
        "fedmap_site_outbox_items",
        "fedmap_aggregator_state_free_bytes",
    }


def test_every_panel_has_an_id_a_title_a_description_and_a_unit_of_its_own() -> None:
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)
    for panel in panels():
        assert panel["type"] in KINDS
        assert panel["title"]
        if panel["type"] == "row":
            continue
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0


def test_panels_lie_inside_the_grid_without_covering_each_other() -> None:
    places = [panel["gridPos"] for panel in panels()]
    for place in places:
        assert 0 <= place["x"] < place["x"] + place["w"] <= COLUMNS
    for one, other in combinations(places, 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart or below, (one, other)


def test_every_panel_asks_the_provisioned_data_source() -> None:
    (source,) = read_yaml(MONITORING / "grafana" / "provisioning" / "datasources" / "fedmap.yml")[
        "datasources"
    ]
    expected = {"type": source["type"], "uid": source["uid"]}
    asked = [panel["datasource"] for panel in panels() if panel["type"] != "row"]
    asked += [target["datasource"] for panel in panels() for target in panel.get("targets", ())]
    asked += [one["datasource"] for one in dashboard()["templating"]["list"]]
    assert all(one == expected for one in asked)


def test_legends_name_labels_that_their_expressions_keep() -> None:
    for panel in panels():
        for target in panel.get("targets", ()):
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                by = re.search(r"\bby \(([^)]*)\)", target["expr"])
                assert by is not None, target["expr"]
                assert label in by[1], target["expr"]


def test_the_guide_explains_every_metric_and_no_other() -> None:
    base = {re.sub(r"_(bucket|sum|count)$", "", name) for name in existing_metrics()}
    listed = set(re.findall(r"^\| `(fedmap_[a-z_]+)`", GUIDE, re.MULTILINE))
    assert listed == base


def test_the_guide_says_what_to_do_for_every_alert() -> None:
    listed = set(re.findall(r"^\| `(Fedmap[A-Za-z]+)`", GUIDE, re.MULTILINE))
    assert listed == {alert.name for alert in alerts()}


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    """A case with an exact list of alerts is of both kinds where another series beside stays quiet."""
    tests = read_yaml(MONITORING / "alerts.test.yml")["tests"]
    fires, quiet = set(), set()
    for test in tests:
        for case in test["alert_rule_test"]:
            if case["exp_alerts"]:
                fires.add(case["alertname"])
            if len(case["exp_alerts"]) < len(test["input_series"]):
                quiet.add(case["alertname"])
    assert fires == quiet == {alert.name for alert in alerts()}


@pytest.mark.parametrize(
    "arguments",
    [("check", "config", "prometheus.yml"), ("check", "rules", "alerts.yml")],
    ids=lambda arguments: arguments[1],
)
def test_prometheus_accepts_its_configuration_and_rules(arguments: tuple[str, ...]) -> None:
    done = promtool(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_when_it_should_and_only_then() -> None:
    done = promtool("test", "rules", "alerts.test.yml")
    assert done.returncode == 0, done.stdout + done.stderr
