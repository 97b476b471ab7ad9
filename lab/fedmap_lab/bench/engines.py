"""vectorised against loop: seconds per site-step for the CPRD network with 185 sites."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedmap.algorithm.examples import Examples
from fedmap.algorithm.fit.fitting import fit_sites
from fedmap.algorithm.fit.values import Model, SiteTask
from fedmap.algorithm.prior.values import initial_prior
from fedmap.algorithm.seeding import torch_stream
from fedmap.algorithm.settings import FedmapSettings, TrainingSettings
from fedmap.study.engine import LoopEngine
from fedmap.study.models import build_network
from fedmap.study.plan.sections import ModelSection
from fedmap_lab.bench.timing import best_seconds
from fedmap_lab.federation.engines import VectorisedEngine, keep_freed_memory

SITES, ROWS, FEATURES, EPOCHS = 185, 2048, 8, 10
LOOPED_SITES = 2  # the loop's cost per site does not depend on how many there are


@dataclass(frozen=True)
class EngineSpeed:
    loop: float  # seconds per site-step
    loop_closed_form: float  # the same loop with the layers' closed-form gradient
    vectorised: float

    @property
    def ratio(self) -> float:
        return self.loop / self.vectorised

    @property
    def ratio_to_closed_form(self) -> float:
        return self.loop_closed_form / self.vectorised


def measure_engines(turns: int = 3) -> EngineSpeed:
    torch.set_num_threads(1)
    keep_freed_memory()
    network = build_network(ModelSection(name="cprd_survival"), (), FEATURES, 1)
    model = Model(network, "cox")
    settings = FedmapSettings(training=TrainingSettings(epochs=EPOCHS))
    prior = initial_prior(network, settings.prior, network.initialise(0))
    tasks = [_task(seed, prior.mu, prior.buffers) for seed in range(SITES)]
    few = tasks[:LOOPED_SITES]
    best = best_seconds(
        {
            "loop": lambda: LoopEngine().fit(model, settings, prior, few),
            "closed": lambda: [fit_sites(model, settings, prior, [task]) for task in few],
            "vectorised": lambda: VectorisedEngine().fit(model, settings, prior, tasks),
        },
        turns,
    )
    steps = ROWS // settings.training.batch_size * EPOCHS
    return EngineSpeed(
        best["loop"] / (LOOPED_SITES * steps),
        best["closed"] / (LOOPED_SITES * steps),
        best["vectorised"] / (SITES * steps),
    )


def _task(seed: int, theta: torch.Tensor, buffers: object) -> SiteTask:
    stream = torch_stream(seed)

    def part(rows: int) -> Examples:
        features = torch.randn(rows, FEATURES, generator=stream)
        time = torch.rand(rows, generator=stream).double() * 10
        return Examples(features, time, torch.rand(rows, generator=stream) < 0.14)

    return SiteTask(theta, buffers, part(ROWS), part(ROWS // 4), seed)  # type: ignore[arg-type]
