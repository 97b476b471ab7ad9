"""Predicting with the INTERVAL network: rows per second against PyTorch's bare forward pass, and with files.

The bare pass is a `torch.nn.Sequential` of the same
layers in evaluation mode, batch by batch over rows that are already scaled tensors. Ours starts at rows as
they were measured and ends at probabilities and classes; lines of their own have the file read and every cell
checked too. One thread, batches of the same size, turns in one run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
import torch
from torch import Tensor, nn

from fedmap.algorithm.model.layers import Buffers
from fedmap.algorithm.model.network import ROWS_AT_ONCE, Network
from fedmap.algorithm.pooling.statistics import feature_statistics, make_scaler
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.data.streaming import FeatureFile
from fedmap.metrics import Threshold
from fedmap.scoring.decision_rules import DecisionRule
from fedmap.study.models import model_of
from fedmap.study.plan.inputs import planned_inputs
from fedmap.study.plan.reading import load_plan
from fedmap.study.plan.sections import FeatureColumn
from fedmap.study.plan.study_plan import StudyPlan
from fedmap_site.predict.rows import Predictor, ReadyModel
from fedmap_site.predict.table import PredictOptions, predict_file
from tests.bench.authors_step import PlainNetwork
from tests.bench.rows import ROOT, Row, best_seconds

PLAN = ROOT / "lab" / "fedmap_lab" / "plans" / "interval.toml"


def measure(rows: int = 200_000, turns: int = 5) -> Iterator[Row]:
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
        pass_alone = _bare(ready.model.network, ready.parameters)
        scaled = ready.scaler.apply(features)
        _same(pass_alone(scaled[:1000]), predictor, features[:1000])
        out = Path(folder) / "out.csv"
        best = best_seconds(
            {
                "bare": lambda: _batches(pass_alone, scaled),
                "core": lambda: predictor.predict(features),
                "csv": lambda: [None for _ in FeatureFile(plan, names, csv).blocks()],
                "parquet": lambda: [None for _ in FeatureFile(plan, names, parquet).blocks()],
                "whole": lambda: predict_file(
                    ready, csv, out, PredictOptions(check_shift=False), lambda _done: None
                ),
            },
            turns,
        )
    bare, core = best["bare"], best["core"]
    yield Row("rows predicted against the bare forward pass", bare / core, 0.8, at_least=True)
    yield Row("the same with the rows read from CSV and checked", bare / (best["csv"] + core))
    yield Row("the same with the rows read from Parquet and checked", bare / (best["parquet"] + core))
    yield Row("the whole command, CSV to CSV, without the shift check", bare / best["whole"])


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


def _bare(network: Network, parameters: SiteParameters) -> nn.Module:
    """The same layers with the same numbers in them."""
    plain = PlainNetwork(network).load(parameters.theta)
    norms = [layer for layer in plain.trunk if isinstance(layer, nn.BatchNorm1d)]
    means = torch.split(parameters.buffers.mean, list(network.channels))
    variances = torch.split(parameters.buffers.variance, list(network.channels))
    for norm, mean, variance in zip(norms, means, variances, strict=True):
        norm.running_mean, norm.running_var = mean, variance
    return plain.trunk.eval()


def _batches(model: nn.Module, features: Tensor) -> None:
    with torch.inference_mode():
        for block in torch.split(features, ROWS_AT_ONCE):
            model(block)


def _same(logits: Tensor, predictor: Predictor, features: Tensor) -> None:
    """Two sides that did not compute the same would not be worth comparing."""
    expected = torch.softmax(logits.double(), -1)[:, 1].detach().numpy()
    np.testing.assert_allclose(predictor.predict(features).numbers["probability"], expected, atol=1e-6)
