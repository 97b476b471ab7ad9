"""Two small studies and what their sites would send: the material of the tests of gate and estimation."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from fedmap.algorithm.fit.values import Model
from fedmap.algorithm.model.layers import Buffers
from fedmap.algorithm.pooling.baseline import BaselineTerms
from fedmap.algorithm.pooling.statistics import FeatureStatistics
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.contract.v1 import federation_pb2 as pb
from fedmap.study.course.state import OpenTask, TaskKind
from fedmap.study.models import model_of
from fedmap.study.plan.reading import parse_plan
from fedmap.study.tensors.parameter_files import (
    encode_parameters,
    encode_statistics,
    encode_theta,
)
from fedmap.study.tensors.rule_files import RuleTensors, encode_rule
from fedmap.study.terms import StudyTerms

BINARY = """
[study]
name = "small-binary"
title = "A small binary study"
[task]
kind = "binary"
label = "died"
classes = [0, 1]
metric = "auroc"
[[features]]
name = "age"
kind = "number"
range = [18, 110]
[[features]]
name = "lactate"
kind = "number"
range = [0, 100]
transform = "log1p"
[[features]]
name = "ward"
kind = "category"
categories = ["a", "b", "c"]
[[features]]
name = "free"
kind = "number"
[model]
name = "mlp"
hidden = [4, 3]
batch_norm = true
[prior]
hidden = [4, 4]
[limits]
min_rows = 20
"""
SURVIVAL = """
[study]
name = "small-survival"
title = "A small survival study"
[task]
kind = "cox"
time = "years"
event = "event"
time_unit = "years"
horizon = 4.0
grid = [1.0, 2.0, 3.0, 4.0]
metric = "c_index"
[[features]]
name = "age"
kind = "number"
range = [18, 110]
[model]
name = "linear"
[prior]
convex = false
"""
LAYOUT = hashlib.sha256(b"the inputs").hexdigest()


@dataclass(frozen=True)
class Small:
    """A study with its model."""

    terms: StudyTerms

    @cached_property
    def model(self) -> Model:
        return model_of(self.terms.plan)


def small(text: str = BINARY, weighting: str = "per_sample") -> Small:
    plan = parse_plan(f'{text}\n[aggregation]\nweighting = "{weighting}"\n', "small.toml")
    return Small(StudyTerms.of_plan(plan, rounds=3, seed=5))


def task(kind: TaskKind, round_number: int = 1) -> OpenTask:
    names: dict[TaskKind, str] = {"fit": f"round-{round_number}"}
    return OpenTask(
        id=names.get(kind, kind),
        kind=kind,
        round=round_number if kind == "fit" else 0,
        opened_at=1_000,
        deadline_at=2_000,
        attempt=1,
        asked=("north", "south"),
    )


def answer(study: Small, asked: OpenTask, tensors: bytes = b"") -> pb.Answer:
    """Without its content, which the caller adds."""
    return pb.Answer(
        study=study.terms.study,
        task_id=asked.id,
        attempt=1,
        site="north",
        terms_digest=study.terms.digest,
        tensors_digest=hashlib.sha256(tensors).hexdigest() if tensors else "",
        tensors_size=len(tensors),
    )


def parameters(study: Small, seed: int = 1) -> SiteParameters:
    network = study.model.network
    channels, layers = sum(network.channels), len(network.channels)
    stream = torch.Generator().manual_seed(seed)
    buffers = Buffers(
        torch.randn(channels, generator=stream),
        torch.rand(channels, generator=stream) + 0.1,
        torch.full((layers,), 7, dtype=torch.int64),
    )
    return SiteParameters(network.initialise(seed), buffers)


def fit_bytes(study: Small, seed: int = 1) -> bytes:
    return encode_parameters(study.model.network, parameters(study, seed))


def theta_bytes(study: Small, seed: int = 1) -> bytes:
    return encode_theta(study.model.network, study.model.network.initialise(seed))


def statistics(rows: int = 40) -> FeatureStatistics:
    """Of the inputs of BINARY: age, log1p(lactate), ward=b, ward=c, free."""
    mean = torch.tensor([60.0, 1.2, 0.25, 0.5, -3e5], dtype=torch.float64)
    variance = torch.tensor([100.0, 0.5, 0.1875, 0.25, 1e9], dtype=torch.float64)
    return FeatureStatistics(rows, mean, variance * rows)


def rows_of(study: Small, count: int) -> Tensor:
    """Rows within the ranges of BINARY, not the same in any input."""
    low, high = torch.tensor([18.0, 0.0, 0.0, 0.0, -1e3]), torch.tensor([110.0, 4.6, 1.0, 1.0, 1e3])
    stream = torch.Generator().manual_seed(count)
    return low + (high - low) * torch.rand(count, study.model.network.inputs, generator=stream)


def statistics_bytes(rows: int = 40) -> bytes:
    return encode_statistics(statistics(rows))


def baseline(times: int = 4) -> BaselineTerms:
    events = torch.tensor([10.0, 12.0, 0.0, 11.0], dtype=torch.float64)[:times]
    risk = torch.tensor([50.0, 40.0, 30.0, 20.0, 10.0], dtype=torch.float64)
    return BaselineTerms(events, events * 0.5, risk[:times].clone(), risk[1 : times + 1].clone(), 0)


def baseline_bytes(terms: BaselineTerms | None = None) -> bytes:
    return encode_rule(RuleTensors(terms or baseline()))


def at(folder: Path, data: bytes) -> Path:
    path = folder / "tensors.safetensors"
    path.write_bytes(data)
    return path


def poisoned(data: bytes, name: str, value: float) -> bytes:
    """The same file with one value of one tensor changed: header and length stay as they were."""
    tensors: dict[str, Tensor] = load(data)
    tensors[name].view(-1)[-1] = value
    changed: bytes = save(tensors)
    return changed


def reordered(data: bytes) -> bytes:
    """The same tensors in the opposite order, as another writer of the format might put them."""
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:start])
    entries, values, at = {}, b"", 0
    for name in sorted(header, reverse=True):
        begin, end = header[name]["data_offsets"]
        entries[name] = header[name] | {"data_offsets": [at, at + end - begin]}
        values += data[start + begin : start + end]
        at += end - begin
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + values
