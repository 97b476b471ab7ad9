"""docker-compose.yml for real: from nothing to the table of results, with containers killed on the way."""

from __future__ import annotations

import csv
import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.containers.engine import ROOT, Engine, wait_until

pytestmark = pytest.mark.containers

STUDY, ROUNDS = "interval-iron", 7
TRAINING = ("non_european_ancestry", "older_donors", "younger_donors")
SETTINGS = {"FEDMAP_ROUNDS": str(ROUNDS)}
STEP_SECONDS, STUDY_SECONDS = 300.0, 900.0
ONE_SHOT = ("patients", "operator", "clinic", "practice", "results")
CONNECTS = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3).close()
    print("yes")
except OSError:
    print("no")
"""
TARGETS = """
import json, urllib.request
with urllib.request.urlopen("http://localhost:9090/api/v1/targets") as answer:
    targets = json.load(answer)["data"]["activeTargets"]
print(json.dumps({target["labels"]["instance"].partition(":")[0]: target["health"] for target in targets}))
"""


@dataclass
class Federation:
    """One run of the compose file under a project name of its own."""

    engine: Engine
    project: str
    out: Path

    def up(self) -> None:
        self.engine.compose(ROOT, self.project, "up", "--detach", "--no-build", **SETTINGS)

    def down(self) -> None:
        self.engine.remove_project(ROOT, self.project, **SETTINGS)

    def container(self, service: str) -> str:
        (name,) = self.listed(f"--filter=label=com.docker.compose.service={service}")
        return name

    def listed(self, *filters: str) -> list[str]:
        mine = f"--filter=label=com.docker.compose.project={self.project}"
        return self.engine.run("ps", "--all", mine, *filters, "--format", "{{.Names}}").stdout.split()

    def status(self) -> Any:
        """The study, as the aggregator tells it."""
        profile = ("--env", "FEDMAP_AGGREGATOR_CONFIG=/var/lib/fedmap/aggregator.toml")
        command = ("fedmap-aggregator", "status", STUDY, "--json")
        done = self.engine.run("exec", *profile, self.container("aggregator"), *command)
        return json.loads(done.stdout)["studies"][0]

    def wait_for_round(self, number: int) -> None:
        """As the operator's container shows it: asking anew each time would keep the machine busy."""

        def reached() -> bool:
            shown = re.findall(rf"round (\d+) of {ROUNDS}", self.engine.logs(self.container("operator")))
            return any(int(seen) >= number for seen in shown)

        wait_until(reached, STUDY_SECONDS, f"round {number}", self.story)

    def kill_and_start(self, service: str) -> None:
        name = self.container(service)
        self.engine.run("kill", "--signal", "KILL", name)
        self.engine.run("start", name)

    def wait_for_end(self, service: str, seconds: float) -> int:
        def ended() -> bool:
            return bool(self.engine.state(self.container(service))["Status"] == "exited")

        wait_until(ended, seconds, f"end of {service}", self.story)
        return int(self.engine.state(self.container(service))["ExitCode"])

    def story(self) -> str:
        """The end of every container's log."""
        told = [f"--- {name}\n{self.engine.logs(name)[-800:]}" for name in self.listed()]
        return "\n".join(told)

    def connects(self, service: str, host: str, port: int) -> bool:
        done = self.engine.run("exec", self.container(service), "python", "-c", CONNECTS, host, str(port))
        return done.stdout.strip() == "yes"

    def address(self, service: str) -> str:
        """In the one network that a site is on."""
        networks = self.engine.inspect(self.container(service))["NetworkSettings"]["Networks"]
        (only,) = networks.values()
        return str(only["IPAddress"])

    @cached_property
    def results(self) -> Path:
        """A copy of what the last service leaves."""
        self.engine.run("cp", f"{self.container('results')}:/var/lib/fedmap/.", self.out)
        return self.out


@pytest.fixture(scope="module")
def federation(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Run to its end, with the aggregator and an agent killed (kill −9) in the middle of the rounds."""
    run = Federation(engine, f"fedmap-test-{uuid.uuid4().hex[:8]}", tmp_path_factory.mktemp("federation"))
    try:
        run.up()
        run.wait_for_round(2)
        run.kill_and_start("aggregator")
        run.wait_for_round(4)
        run.kill_and_start("site-b")
        assert run.wait_for_end("results", STUDY_SECONDS) == 0
        yield run
    finally:
        run.down()


def test_the_study_completes_with_every_round_and_every_site(federation: Federation) -> None:
    (study,) = json.loads((federation.results / "status.json").read_text())["studies"]
    assert study["phase"] == "complete"
    assert [entry["round"] for entry in study["history"]] == list(range(1, ROUNDS + 1))
    assert {entry["answered"] for entry in study["history"]} == {3}
    with (federation.results / "results" / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["metric"].startswith("balanced_accuracy")]
    scored = {(row["site"], row["metric"]): float(row["value"]) for row in rows}
    assert {site for site, _ in scored} == set(TRAINING)
    assert all(0.5 < value < 1.0 for value in scored.values()), scored


def test_tier_2_has_a_model_of_its_own_and_tier_3_its_predictions(federation: Federation) -> None:
    report = json.loads((federation.results / "personal" / "report.json").read_text())
    assert report["metric"] == "balanced_accuracy"
    assert report["verdict"]
    with (federation.results / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 40
    assert all(0.0 <= float(row["probability"]) <= 1.0 for row in rows if row["probability"])


def test_the_run_ends_with_one_table_of_the_three_tiers(federation: Federation) -> None:
    printed = federation.engine.logs(federation.container("results"))
    kept = (federation.results / "table.txt").read_text()
    for text in (printed, kept):
        for words in (*TRAINING, "new_donors", "small_centre", "T1 trained", "T2 fine-tuned", "T3 predicted"):
            assert words in text
    assert (federation.results / "federation.png").read_bytes().startswith(b"\x89PNG")


def test_every_one_shot_service_ends_well(federation: Federation) -> None:
    assert {name: federation.wait_for_end(name, STEP_SECONDS) for name in ONE_SHOT} == dict.fromkeys(
        ONE_SHOT, 0
    )


def test_a_site_reaches_the_aggregator_and_no_other_site(federation: Federation) -> None:
    other = federation.address("site-b")
    assert federation.connects("aggregator", other, 9464)  # it does listen there
    assert federation.connects("site-a", "aggregator", 8443)
    assert not federation.connects("site-a", other, 9464)
    assert not federation.connects("site-a", "site-b", 9464)
    assert not federation.connects("site-a", "192.0.2.1", 443)


def test_every_service_runs_hardened(federation: Federation) -> None:
    for name in federation.listed():
        found = federation.engine.inspect(name)
        assert found["HostConfig"]["ReadonlyRootfs"], name
        assert found["Config"]["User"] == "65532:65532", name
        assert any(o.startswith("no-new-privileges") for o in found["HostConfig"]["SecurityOpt"]), name
        assert found["HostConfig"]["CapDrop"], name
        assert not found["HostConfig"]["Privileged"], name


def test_the_agents_of_the_hospitals_are_healthy(federation: Federation) -> None:
    waiting = [federation.container(service) for service in ("aggregator", "site-a", "site-b", "site-c")]

    def all_healthy() -> bool:
        while waiting and federation.engine.healthy(waiting[0]):
            waiting.pop(0)
        return not waiting

    wait_until(all_healthy, STEP_SECONDS, "healthy federation", federation.story)


def test_no_token_and_no_key_is_in_a_log(federation: Federation) -> None:
    told = federation.story()
    assert "PRIVATE KEY" not in told
    assert '"token"' not in told


def test_prometheus_of_the_monitoring_profile_scrapes_every_service(
    federation: Federation, tools: str
) -> None:
    """Debian's Prometheus in place of the public image, with the command, mounts and networks of the file."""
    engine, profile = federation.engine, ("--profile", "monitoring")
    settings = {**SETTINGS, "FEDMAP_PROMETHEUS_IMAGE": tools}
    engine.compose(
        ROOT, federation.project, *profile, "up", "--detach", "--no-build", "prometheus", **settings
    )
    name = federation.container("prometheus")
    try:
        engine.run("exec", name, "promtool", "check", "config", "/etc/prometheus/prometheus.yml")
        expected = dict.fromkeys(("aggregator", "site-a", "site-b", "site-c"), "up")

        def scraped() -> bool:
            found = json.loads(engine.run("exec", name, "python", "-c", TARGETS).stdout)
            return bool(found == expected)

        wait_until(scraped, STEP_SECONDS, "scraped federation", federation.story)
    finally:
        engine.run("rm", "--force", name)


def test_the_monitoring_profile_is_whole(federation: Federation) -> None:
    """Grafana's image is not to be had in every place where tests run: its part is read, not started."""
    printed = federation.engine.compose(ROOT, federation.project, "--profile", "monitoring", "config").stdout
    services = yaml.safe_load(printed)["services"]
    assert {"prometheus", "grafana"} <= services.keys()
    for name in ("prometheus", "grafana"):
        sources = [str(volume).partition(":")[0] for volume in services[name]["volumes"]]
        assert all((ROOT / source).is_dir() for source in sources if source.startswith((".", "/")))


def test_a_second_up_after_a_stop_goes_on_and_prints_the_same_table(federation: Federation) -> None:
    """Last in this file: it stops the federation for a moment."""
    before = (federation.results / "table.txt").read_text()
    history = federation.status()["history"]
    federation.engine.compose(ROOT, federation.project, "down", **SETTINGS)
    federation.up()
    assert federation.wait_for_end("results", STEP_SECONDS) == 0
    assert federation.wait_for_end("operator", STEP_SECONDS) == 0
    assert before.strip() in federation.engine.logs(federation.container("results"))
    assert federation.status()["history"] == history
