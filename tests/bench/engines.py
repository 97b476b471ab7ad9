"""Site-steps per second of the CPRD network with 185 sites: both engines and the authors' step."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fedmap.algorithm.examples import Examples
from fedmap.algorithm.fit.fitting import fit_sites
from fedmap.algorithm.fit.values import Model, SiteTask
from fedmap.algorithm.model.layers import Buffers
from fedmap.algorithm.prior.values import initial_prior
from fedmap.algorithm.seeding import torch_stream
from fedmap.algorithm.settings import FedmapSettings, TrainingSettings
from fedmap.study.engine import LoopEngine
from fedmap.study.models import build_network
from fedmap.study.plan.sections import ModelSection
from fedmap_lab.federation.engines import VectorisedEngine, keep_freed_memory
from tests.bench.authors_step import cox, fit
from tests.bench.rows import Row, best_seconds

FEATURES = 8
LOOPED_SITES = 2  # the cost per site of what goes site by site does not depend on how many there are


def measure(sites: int = 185, rows: int = 2048, epochs: int = 10, turns: int = 3) -> Iterator[Row]:
    torch.set_num_threads(1)
    keep_freed_memory()
    network = build_network(ModelSection(name="cprd_survival"), (), FEATURES, 1)
    model = Model(network, "cox")
    settings = FedmapSettings(training=TrainingSettings(epochs=epochs))
    theta = network.initialise(0)
    prior = initial_prior(network, settings.prior, theta)
    tasks = [_task(seed, rows, theta, prior.buffers) for seed in range(sites)]
    few = tasks[:LOOPED_SITES]
    best = best_seconds(
        {
            "authors": lambda: [
                fit(network, settings, cox, theta, task.train, task.validation) for task in few
            ],
            "loop": lambda: LoopEngine().fit(model, settings, prior, few),
            "closed": lambda: [fit_sites(model, settings, prior, [task]) for task in few],
            "one core": lambda: VectorisedEngine(1).fit(model, settings, prior, tasks),
            "all cores": lambda: VectorisedEngine().fit(model, settings, prior, tasks),
        },
        turns,
    )
    a_site = {
        name: time / (sites if name.endswith(("core", "cores")) else len(few)) for name, time in best.items()
    }
    one_core = a_site["one core"]
    yield Row("loop against the authors' step, one core", a_site["authors"] / a_site["loop"])
    yield Row("vectorised against the authors' step, one core", a_site["authors"] / one_core)
    yield Row("vectorised against loop, one core", a_site["loop"] / one_core)
    yield Row("vectorised against loop with closed-form gradients, one core", a_site["closed"] / one_core)
    as_chosen = a_site["loop"] / a_site["all cores"]
    yield Row("vectorised on all cores against loop, which uses one", as_chosen, 20, at_least=True)


def _task(seed: int, rows: int, theta: torch.Tensor, buffers: Buffers) -> SiteTask:
    stream = torch_stream(seed)

    def part(count: int) -> Examples:
        features = torch.randn(count, FEATURES, generator=stream)
        time = torch.rand(count, generator=stream).double() * 10
        return Examples(features, time, torch.rand(count, generator=stream) < 0.14)

    return SiteTask(theta, buffers, part(rows), part(rows // 4), seed)
