"""Every benchmark runs, at a tiny size, and its rows are those of its table in docs/benchmarks.md."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fedmap.algorithm.examples import Examples
from fedmap.algorithm.fit.batches import pack
from fedmap.algorithm.model.layers import Buffers
from fedmap.algorithm.model.likelihood import negative_log_likelihood
from fedmap.algorithm.seeding import torch_stream
from fedmap.algorithm.settings import FedmapSettings, TrainingSettings
from fedmap.study.models import build_network
from fedmap.study.plan.sections import ModelSection
from tests.bench.__main__ import MEASUREMENTS
from tests.bench.authors_step import PlainNetwork, cox, fit
from tests.bench.rows import DOCS, Row, publish

TINY: dict[str, dict[str, Any]] = {
    "engines": {"sites": 3, "rows": 64, "epochs": 1, "turns": 1},
    "prior-step": {"features": 30, "steps": 2, "epochs": 1, "turns": 1},
    "transfer": {"width": 8, "turns": 1},
    "exchange": {"agents": 2, "rounds": 2},
    "aggregation": {"sites": 3, "turns": 1},
    "answering": {"agents": 2, "convex": False},
    "idle": {"agents": 2, "idle_seconds": 0.6},
    "verify": {"width": 10, "turns": 1},
    "prediction": {"rows": 500, "turns": 1},
}


def table(docs: Path, name: str) -> list[str]:
    """The labels of a benchmark's rows, as the docs have them."""
    block = docs.read_text().partition(f"<!-- {name} -->\n")[2].partition(f"\n<!-- end of {name} -->")[0]
    return [line.split("|")[1].strip() for line in block.splitlines() if line.startswith("|")][2:]


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_benchmark_runs_and_its_rows_are_the_documented_ones(name: str) -> None:
    rows = list(MEASUREMENTS[name](**TINY[name]))
    assert all(math.isfinite(row.measured) and row.measured >= 0 for row in rows)
    assert [row.what for row in rows] == table(DOCS, name)


def test_table_is_written_between_its_marks_and_a_missed_target_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    docs = tmp_path / "benchmarks.md"
    docs.write_text("before\n<!-- one -->\nold\n<!-- end of one -->\nafter\n")
    fast, slow = Row("fast", 3.0, 2, at_least=True), Row("slow", 3.0, 2)
    assert publish("one", "the command", lambda: [fast, slow, Row("beside", 0.5)], docs) == 1
    text = docs.read_text()
    assert text.startswith("before\n<!-- one -->\n| what |")
    assert text.endswith("<!-- end of one -->\nafter\n")
    assert "| fast | 3 × | ≥ 2 × | met |" in text
    assert "| slow | 3 × | ≤ 2 × | **missed** |" in text
    assert "`the command`" in capsys.readouterr().out
    assert publish("one", "the command", lambda: [fast], docs) == 0
    assert table(docs, "one") == ["fast"]


def test_authors_step_computes_what_ours_does() -> None:
    """A baseline that did other work would not be worth comparing with."""
    stream = torch_stream(3)
    network = build_network(ModelSection(name="cprd_survival", dropout=0.0), (), 4, 1)
    theta, features = network.initialise(1), torch.randn(40, 4, generator=stream)
    outputs = PlainNetwork(network).load(theta).eval()(features).detach()
    fresh = network.initial_buffers()
    buffers = Buffers(fresh.mean[None], fresh.variance[None], fresh.count[None])
    torch.testing.assert_close(outputs[None], network.predict(theta[None], buffers, features[None]))
    rows = Examples(features, torch.rand(40, generator=stream).double(), torch.arange(40) % 3 == 0)
    packed = pack([rows], "cox")
    assert rows.event is not None
    ours = negative_log_likelihood(
        "cox", network.predict(theta[None], buffers, packed.features), packed.outcome()
    )
    assert float(cox(outputs, rows)) == pytest.approx(float(ours) / int(rows.event.sum()), rel=1e-4)
    settings = FedmapSettings(training=TrainingSettings(epochs=20, batch_size=8))
    fitted = fit(network, settings, cox, theta, rows, rows).eval()(features).detach()
    assert float(cox(fitted, rows)) < float(cox(outputs, rows))
