"""A real Prometheus scrapes a real federation: every expression of dashboard and alerts is put to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fedmap.contract.v1 import values
from fedmap_lab.local.federation import LocalFederation, free_port
from tests.deploy.monitoring_files import alerts, existing_metrics, program, queries
from tests.services.prometheus import Prometheus, running_prometheus
from tests.services.studies import assemble, operator, small_study, start

ROUNDS = 200  # more than are done here: the study is stopped underway
# Nothing is refused and nothing fails in a sound federation, so these have no rows.
QUIET = ("rejected_answers", "failed_answers", "estimation_failures", 'calls_total{code!="ok"}')

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """It has seen rounds close; now site b is dead, and the open round has the answer of a alone."""
    program("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    study = small_study(folder, sites={"a": 400, "b": 400}, rounds=ROUNDS)
    centre, ports = free_port(), {"a": free_port(), "b": free_port()}
    listen = f'[metrics]\nlisten = "127.0.0.1:{centre}"\n'
    with LocalFederation(folder / "federation", aggregator_toml=listen) as federation:
        assemble(federation, study)
        for site, port in ports.items():
            with (federation.site_folder(site) / "site.toml").open("a") as config:
                config.write(f'[metrics]\nlisten = "127.0.0.1:{port}"\n')
        with running_prometheus(folder, centre, ports) as server:
            for site in ports:
                federation.run_site(site)
            start(federation, study)
            server.until(lambda: server.query('fedmap_aggregator_round_metric{model="personal"}'))
            federation.kill("b")
            with operator(federation) as client:
                server.until(lambda: _answered(client.status(study.name).studies[0]) == {"a"})
            server.until(lambda: server.query('up{site="b"} == 0'))
            server.until(
                lambda: (
                    server.query('fedmap_aggregator_member_state{site="a", state="answered"}')
                    and server.query("fedmap_aggregator_task_answers == 1")
                )
            )
            yield server


def _answered(status: values.StudyStatus) -> set[str]:
    return {member.site for member in status.members if member.answer == "accepted"}


def test_every_expression_of_the_dashboard_is_understood_and_has_data(prometheus: Prometheus) -> None:
    def without_data() -> list[str]:
        silent = [query for query in queries() if not prometheus.query(query)]
        return [query for query in silent if not any(part in query for part in QUIET)]

    prometheus.until(lambda: not without_data(), otherwise=without_data)


def test_every_alert_is_evaluated_without_a_fault_and_a_sound_study_raises_none(
    prometheus: Prometheus,
) -> None:
    def evaluated() -> bool:
        groups = prometheus.ask("rules")["groups"]
        return all(rule["health"] != "unknown" for group in groups for rule in group["rules"])

    prometheus.until(evaluated)
    rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == {alert["alert"] for alert in alerts()}
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
    firing = {rule["name"] for rule in rules if rule["state"] == "firing"}
    assert firing <= {"FedmapAggregatorDiskLow", "FedmapAgentDiskLow"}  # this machine's own disk


def test_the_dead_agent_is_on_its_way_to_an_alert(prometheus: Prometheus) -> None:
    def waiting() -> bool:
        labels = [alert["labels"] for alert in prometheus.ask("alerts")["alerts"]]
        return ("FedmapAgentDown", "b") in [(one["alertname"], one.get("site")) for one in labels]

    prometheus.until(waiting)


def test_where_the_members_stand_is_what_the_operator_sees(prometheus: Prometheus) -> None:
    rows = prometheus.query("fedmap_aggregator_member_state == 1")
    assert {(row["metric"]["site"], row["metric"]["state"]) for row in rows} <= {
        ("a", "answered"),
        ("b", "waiting"),
        ("b", "working"),
        ("b", "silent"),
    }
    assert len(rows) == 2


def test_what_is_scraped_is_what_the_guide_lists(prometheus: Prometheus) -> None:
    names = {name for name in prometheus.ask("label/__name__/values") if name.startswith("fedmap_")}
    created = {name for name in names if name.endswith("_created")}
    assert names - created <= existing_metrics()
