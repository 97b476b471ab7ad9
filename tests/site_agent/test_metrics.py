"""What the agent tells Prometheus: its own work, its outbox, its contact with the centre."""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fedmap.process.settings import read_config
from fedmap_lab.local.federation import free_port
from fedmap_site.config import SiteConfig
from fedmap_site.metrics import SiteMetrics
from tests.site_agent.federation_double import AggregatorDouble
from tests.site_agent.running_agent import AgentSite


def test_the_figures_have_the_names_that_dashboards_ask_for() -> None:
    metrics = SiteMetrics()
    metrics.received.inc(10)
    metrics.sent.inc(20)
    metrics.tasks.labels("fit", "answered").inc()
    metrics.certificate_ends.set(5)
    metrics.connected.set(1)
    metrics.show_outbox({"waiting_review": 2}, 1_000)
    metrics.show_outbox({"released": 1}, None)
    with metrics.timed("work"):
        pass
    text = generate_latest(metrics.registry).decode()
    for line in (
        "fedmap_site_received_bytes_total 10.0",
        "fedmap_site_sent_bytes_total 20.0",
        'fedmap_site_tasks_total{kind="fit",outcome="answered"} 1.0',
        'fedmap_site_stage_seconds_total{stage="work"}',
        'fedmap_site_outbox_items{state="released"} 1.0',
        'fedmap_site_outbox_items{state="waiting_review"} 0.0',
        "fedmap_site_outbox_oldest_waiting_seconds 0.0",
        "fedmap_site_certificate_end_seconds 5.0",
        "fedmap_site_connected 1.0",
        "fedmap_site_last_contact_timestamp_seconds 0.0",
    ):
        assert line in text


def test_the_oldest_item_that_waits_for_a_person_grows_old() -> None:
    metrics = SiteMetrics()
    metrics.show_outbox({"waiting_review": 1}, int((time.time() - 3600) * 1000))
    waited = metrics.registry.get_sample_value("fedmap_site_outbox_oldest_waiting_seconds")
    assert waited == pytest.approx(3600, abs=60)


def test_a_running_agent_shows_what_waits_for_review_its_contact_and_its_disk(tmp_path: Path) -> None:
    port = free_port()
    with AggregatorDouble() as aggregator:
        site = AgentSite(tmp_path, aggregator, egress="review")
        with site.config_path.open("a") as config:
            config.write(f'[metrics]\nlisten = "127.0.0.1:{port}"\n')
        site.config = read_config(site.config_path, SiteConfig)
        aggregator.tasks = [site.statistics()]
        with site.running():
            aggregator.wait_for(lambda: any(poll.in_hand for poll in aggregator.polls), 60)
            page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    shown = {
        (sample.name.removeprefix("fedmap_site_"), sample.labels.get("state", "")): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert shown["outbox_items", "waiting_review"] == 1
    assert shown["outbox_items", "released"] == 0
    assert 0 < shown["outbox_oldest_waiting_seconds", ""] < 600
    assert shown["connected", ""] == 1
    assert shown["last_contact_timestamp_seconds", ""] == pytest.approx(time.time(), abs=120)
    assert 0 < shown["state_free_bytes", ""] < shown["state_size_bytes", ""]
