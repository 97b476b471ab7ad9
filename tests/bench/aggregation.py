"""Aggregating 1,000 updates of the eICU network: time against reading and summing the same files, and memory.

The aggregator's own estimation process does the work
over real blobs, under the eICU plan (quadratic prior). All sides take turns over files in the page cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray

from fedmap.algorithm.model.network import Network
from fedmap.algorithm.pooling.statistics import Scaler
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.prior.values import initial_prior
from fedmap.contract.v1.values import Answer, FitAnswer
from fedmap.errors import FedmapError
from fedmap.files.digests import sha256_hex
from fedmap.study.models import model_of
from fedmap.study.plan.reading import load_plan
from fedmap.study.tensors.parameter_files import PriorFile, encode_parameters, encode_prior
from fedmap.study.terms import StudyTerms
from fedmap_aggregator.estimation.process import EstimationProcess, Request
from fedmap_aggregator.store.blobs import BlobStore
from tests.bench.rows import ROOT, Row, best_seconds

PLAN = ROOT / "lab" / "fedmap_lab" / "plans" / "eicu.toml"


def measure(sites: int = 1_000, turns: int = 5) -> Iterator[Row]:
    """In a temporary folder of about a gigabyte."""
    terms = StudyTerms.of_plan(load_plan(PLAN))
    network = model_of(terms.plan).network
    with TemporaryDirectory(prefix="fedmap-bench-") as folder:
        blobs = BlobStore(Path(folder))
        request = _request(terms, network, blobs, sites)
        files = [blobs.existing(answer.tensors_digest) for answer in request.answers]
        with closing(EstimationProcess(Path(folder))) as worker:
            with suppress(FedmapError):
                worker.ask(replace(request, answers=()))  # refused at once: the process is up, and idle
            assert worker.pid is not None
            idle = _status_kib(worker.pid, "VmRSS")
            best = best_seconds(
                {
                    "estimation": lambda: worker.ask(request),
                    "float64": lambda: _summed(files, np.dtype(np.float64)),
                    "float32": lambda: _summed(files, np.dtype(np.float32)),
                },
                turns,
            )
            peak = _status_kib(worker.pid, "VmHWM")
    yield Row("1,000 updates against reading and summing in float64", best["estimation"] / best["float64"], 3)
    yield Row("1,000 updates against reading and summing in float32", best["estimation"] / best["float32"])
    yield Row("peak memory above idle", (peak - idle) / 1024, 500, unit="MiB")


def _request(terms: StudyTerms, network: Network, blobs: BlobStore, sites: int) -> Request:
    theta = network.initialise(0)
    prior = PriorFile(
        initial_prior(network, terms.plan.prior, theta),
        Scaler(torch.zeros(network.inputs), torch.ones(network.inputs)),
    )
    updates = []
    for number in range(sites):
        own = theta + 0.01 * torch.randn(theta.shape, generator=torch.Generator().manual_seed(number))
        data = encode_parameters(network, SiteParameters(own, network.initial_buffers()))
        fit = FitAnswer(log_omega=-0.5 - 1e-4 * number)
        updates.append(Answer(site=f"site-{number:04d}", tensors_digest=_put(blobs, data), fit=fit))
    start = blobs.put(encode_prior(network, terms.plan.prior, prior))
    return Request("fit", terms.to_json(), tuple(updates), 1, start)


def _put(blobs: BlobStore, data: bytes) -> str:
    """As `BlobStore.put`, without waiting a thousand times for the disk."""
    digest = sha256_hex(data)
    path = blobs.path(digest)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return digest


def _summed(files: list[Path], precision: np.dtype[np.floating]) -> NDArray[np.floating]:
    """Header and all: the plainest way to read these bytes and sum them."""
    total = np.zeros(files[0].stat().st_size // 4, precision)
    with np.errstate(all="ignore"):  # a header read as numbers
        for file in files:
            total += np.fromfile(file, dtype=np.float32)
    return total


def _status_kib(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0])
    raise LookupError(field)
