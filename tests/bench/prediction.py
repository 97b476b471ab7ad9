"""Predicting with the INTERVAL network: rows per second against PyTorch's bare forward pass, and with files.

`python -m tests.bench.prediction` prints the figures. The bare pass is a `torch.nn.Sequential` of the same
layers in evaluation mode, batch by batch over rows that are already scaled tensors. Ours starts at rows as
they were measured and ends at probabilities and classes; lines of their own have the file read and every cell
checked too. One thread, batches of the same size, turns in one run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
import torch
from torch import Tensor, nn

from fedmap.algorithm.model.layers import BatchNorm, Buffers, Dropout, Linear, Relu
from fedmap.algorithm.model.network import Network
from fedmap.algorithm.pooling.statistics import feature_statistics, make_scaler
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.data.streaming import FeatureFile
from fedmap.metrics import Threshold
from fedmap.scoring.decision_rules import DecisionRule
from fedmap.study.models import model_of
from fedmap.study.plan import FeatureColumn, StudyPlan, load_plan
from fedmap.study.plan.inputs import planned_inputs
from fedmap_site.predict.network import ROWS_AT_ONCE
from fedmap_site.predict.rows import Predictor, ReadyModel
from fedmap_site.predict.table import PredictOptions, predict_file

PLAN = Path(__file__).resolve().parents[2] / "lab" / "fedmap_lab" / "plans" / "interval.toml"
ROWS = 200_000


@dataclass(frozen=True)
class PredictionBench:
    """Seconds are the best of the turns, all for the same rows."""

    rows: int
    bare: float  # nn.Sequential, tensors in and logits out
    core: float  # scaled, predicted, probability and class
    csv: float  # a CSV file read and checked, nothing predicted
    parquet: float
    whole: float  # `predict_file`: CSV in, CSV out

    @property
    def ratio(self) -> float:
        """Limit: at least 0.8."""
        return self.bare / self.core


def measure(rows: int = ROWS, turns: int = 5) -> PredictionBench:
    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    plan = load_plan(PLAN)
    with TemporaryDirectory(prefix="fedmap-bench-") as folder:
        csv, parquet = Path(folder) / "donors.csv", Path(folder) / "donors.parquet"
        table = _donors(plan, rows)
        pa_csv.write_csv(table, csv, pa_csv.WriteOptions(quoting_style="needed"))
        pa_parquet.write_table(table, parquet)
        names = tuple(f.name if f.kind == "number" else f"{f.name}=M" for f in _columns(plan))
        features = torch.cat([block.rows.values for block in FeatureFile(plan, names, csv).blocks()])
        ready = _model(plan, names, features)
        predictor = Predictor(ready)
        bare = _bare(ready.model.network, ready.parameters)
        scaled = ready.scaler.apply(features)
        _same(bare(scaled[:1000]), predictor, features[:1000])
        out = Path(folder) / "out.csv"
        best = _best(
            {
                "bare": lambda: _batches(bare, scaled),
                "core": lambda: predictor.predict(features),
                "csv": lambda: [None for _ in FeatureFile(plan, names, csv).blocks()],
                "parquet": lambda: [None for _ in FeatureFile(plan, names, parquet).blocks()],
                "whole": lambda: predict_file(
                    ready, csv, out, PredictOptions(check_shift=False), lambda _done: None
                ),
            },
            turns,
        )
    return PredictionBench(rows, best["bare"], best["core"], best["csv"], best["parquet"], best["whole"])


def _columns(plan: StudyPlan) -> list[FeatureColumn]:
    return [feature for feature in plan.features if isinstance(feature, FeatureColumn)]


def _donors(plan: StudyPlan, rows: int) -> pa.Table:
    """Invented rows inside the plan's ranges."""
    rng = np.random.default_rng(0)
    table = {}
    for feature in _columns(plan):
        if feature.range is None:
            table[feature.name] = rng.choice(list(feature.categories), rows)
        else:
            low, high = feature.range
            table[feature.name] = np.clip(
                rng.normal((low + high) / 2, (high - low) / 12, rows), low, high
            ).round(2)
    return pa.table(table)


def _model(plan: StudyPlan, names: tuple[str, ...], features: Tensor) -> ReadyModel:
    model = model_of(plan)
    channels = sum(model.network.channels)
    torch.manual_seed(0)
    counts = model.network.initial_buffers().count
    buffers = Buffers(torch.rand(channels), torch.rand(channels) + 0.5, counts)
    return ReadyModel(
        name="interval-iron-t3-1",
        title=plan.study.title,
        intended_use="",
        personal=False,
        tier=3,
        bundle_sha256="0" * 64,
        expires_unix_ms=1 << 50,
        plan=plan,
        inputs=names,
        model=model,
        parameters=SiteParameters(model.network.initialise(0), buffers),
        scaler=make_scaler(feature_statistics(features), planned_inputs(plan).scaled),
        rule=DecisionRule(Threshold(0.5)),
        reference=None,
    )


def _bare(network: Network, parameters: SiteParameters) -> nn.Sequential:
    """The same layers with the same numbers in them."""
    views = iter(network.spec.views(parameters.theta))
    layers: list[nn.Module] = []
    done = 0
    for layer in network.trunk:
        match layer:
            case Linear():
                linear = nn.Linear(layer.inputs, layer.outputs)
                linear.weight.data, linear.bias.data = next(views), next(views)
                layers.append(linear)
            case BatchNorm():
                norm = nn.BatchNorm1d(layer.channels)
                norm.weight.data, norm.bias.data = next(views), next(views)
                here = slice(done, done + layer.channels)
                norm.running_mean = parameters.buffers.mean[here]
                norm.running_var = parameters.buffers.variance[here]
                done += layer.channels
                layers.append(norm)
            case Relu():
                layers.append(nn.ReLU())
            case Dropout():
                layers.append(nn.Dropout(layer.rate))
    return nn.Sequential(*layers).eval()


def _batches(model: nn.Sequential, features: Tensor) -> None:
    with torch.inference_mode():
        for block in torch.split(features, ROWS_AT_ONCE):
            model(block)


def _same(logits: Tensor, predictor: Predictor, features: Tensor) -> None:
    """Two sides that did not compute the same would not be worth comparing."""
    expected = torch.softmax(logits.double(), -1)[:, 1].detach().numpy()
    np.testing.assert_allclose(predictor.predict(features).numbers["probability"], expected, atol=1e-6)


def _best(alternatives: dict[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """One turn to warm up, then each in turn; the shortest time of each."""
    best = dict.fromkeys(alternatives, float("inf"))
    for turn in range(turns + 1):
        for name, run in alternatives.items():
            start = time.perf_counter()
            run()
            if turn:
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def main() -> None:
    found = measure()
    print(  # noqa: T201
        f"{found.rows:,} rows of the INTERVAL network\n"
        f"  {found.ratio:.2f} × the rows per second of the bare forward pass (limit 0.8)\n"
        f"  {found.rows / found.core:,.0f} rows/s from measured values to probability and class\n"
        f"  {found.rows / found.csv:,.0f} rows/s read from CSV and checked\n"
        f"  {found.rows / found.parquet:,.0f} rows/s read from Parquet and checked\n"
        f"  {found.rows / found.whole:,.0f} rows/s of the whole command, CSV to CSV"
    )


if __name__ == "__main__":
    main()
