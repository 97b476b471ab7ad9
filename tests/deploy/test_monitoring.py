"""Dashboard and alerts ask for metrics that exist, rules do what they say, the guide explains them all."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from itertools import combinations
from pathlib import Path
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


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_no_alert_waits_for_a_metric_that_does_not_exist(alert: dict[str, Any]) -> None:
    assert used_metrics([alert["expr"]]) <= existing_metrics()
    assert alert["labels"]["severity"] in ("critical", "warning")


def test_no_panel_asks_for_a_metric_that_does_not_exist() -> None:
    variables = [str(one["definition"]) for one in dashboard()["templating"]["list"]]
    assert used_metrics(queries() + variables) <= existing_metrics()


def test_the_dashboard_shows_what_an_operator_has_to_see() -> None:
    centre = (
        "study_rounds_done task_answers task_answers_needed member_state member_lateness_seconds round_loss "
        "round_metric rejected_answers_total site_certificate_ends_timestamp_seconds state_free_bytes"
    )
    needed = {f"fedmap_aggregator_{name}" for name in centre.split()} | {"fedmap_site_outbox_items"}
    assert needed <= used_metrics(queries())


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
    (source,) = read_yaml(MONITORING / "grafana/provisioning/datasources/fedmap.yml")["datasources"]
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
    assert listed == {alert["alert"] for alert in alerts()}


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    """A case with an exact list of alerts is of both kinds where another series beside stays quiet."""
    tests = read_yaml(MONITORING / "alerts.test.yml")["tests"]
    cases = [(case, len(test["input_series"])) for test in tests for case in test["alert_rule_test"]]
    fires = {case["alertname"] for case, _ in cases if case["exp_alerts"]}
    quiet = {case["alertname"] for case, series in cases if len(case["exp_alerts"]) < series}
    assert fires == quiet == {alert["alert"] for alert in alerts()}


@pytest.mark.parametrize(
    "arguments", ["check config prometheus.yml", "check rules alerts.yml", "test rules alerts.test.yml"]
)
def test_prometheus_accepts_its_configuration_and_rules_and_each_alert_fires_only_when_it_should(
    arguments: str,
) -> None:
    done = promtool(*arguments.split())
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_starts_by_the_commands_of_the_guide(tmp_path: Path) -> None:
    """As written, in a network of its own: the block takes Prometheus' usual port."""
    program("prometheus")
    (block,) = [one for one in re.findall(r"```bash\n(.*?)```", GUIDE, re.DOTALL) if "promtool" in one]
    shutil.copytree(MONITORING, tmp_path / "deploy" / "monitoring")
    alone = ["unshare", "--net", "--map-root-user", "bash", "-euc", f"ip link set lo up\n{block}"]
    if subprocess.run([*alone[:3], "true"], check=False).returncode:
        pytest.skip("this account may not make a network namespace")
    with subprocess.Popen(
        ["timeout", "120", *alone],  # a silent Prometheus is a failure, not a wait without end
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        assert run.stderr is not None
        try:
            said = []
            for line in run.stderr:  # ends where the process does
                said.append(line)
                if "Server is ready to receive web requests" in line:
                    break
            assert "ready to receive" in said[-1], "".join(said)
        finally:
            os.killpg(run.pid, signal.SIGTERM)


# The profile `monitoring` of docker-compose.yml, which mounts these files


def service(name: str) -> dict[str, Any]:
    found: dict[str, Any] = read_yaml(ROOT / "docker-compose.yml")["services"][name]
    return found


def mounted(name: str) -> dict[str, Path]:
    """Place in the container → file or folder of the project."""
    pairs = [volume.split(":") for volume in service(name)["volumes"] if volume.startswith("./")]
    assert all(mode == "ro" for _, _, mode in pairs)
    return {inside: ROOT / outside for outside, inside, _ in pairs}


def test_prometheus_in_the_compose_file_reads_the_configuration_that_is_mounted() -> None:
    ((inside, outside),) = mounted("prometheus").items()
    (option,) = [word for word in service("prometheus")["command"] if word.startswith("--config.file=")]
    named = Path(option.partition("=")[2])
    assert (outside / named.relative_to(inside)).is_file()
    targets = [
        target
        for section in read_yaml(outside / "prometheus.yml")["scrape_configs"]
        for file in section["file_sd_configs"][0]["files"]
        for entry in read_yaml(outside / file)
        for target in entry["targets"]
    ]
    for target in targets:
        assert share_a_network("prometheus", target.partition(":")[0]), target
    assert len(targets) == 4


def share_a_network(one: str, other: str) -> bool:
    return not set(service(one)["networks"]).isdisjoint(service(other)["networks"])


def test_grafana_in_the_compose_file_finds_its_provisioning_its_dashboard_and_prometheus() -> None:
    places = mounted("grafana")
    provisioning = places["/etc/grafana/provisioning"]
    (provider,) = read_yaml(provisioning / "dashboards" / "fedmap.yml")["providers"]
    assert provider["type"] == "file"
    folder = places[provider["options"]["path"]]
    assert [path.suffix for path in folder.iterdir()] == [".json"]
    (source,) = read_yaml(provisioning / "datasources" / "fedmap.yml")["datasources"]
    told = [source[name] for name in ("type", "access", "url")]
    assert told == ["prometheus", "proxy", "http://prometheus:9090"]
    assert share_a_network("grafana", "prometheus")


def test_the_dashboard_has_the_shape_of_a_provisioned_one() -> None:
    """What Grafana asks of a file: no number of its own database, a uid, a schema, a version, panels."""
    whole = dashboard()
    assert whole.get("id") is None
    assert all(whole[name] for name in ("uid", "title"))
    assert whole["schemaVersion"] >= 36
    assert {"panels", "templating", "time", "timezone", "refresh"} <= whole.keys()
    assert "__inputs" not in whole  # what an export for sharing asks its reader to fill in
