"""What the prior costs in a training step of the eICU network: as its authors take it, and as we do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from fedmap.algorithm.examples import Examples
from fedmap.algorithm.fit.fitting import fit_sites
from fedmap.algorithm.fit.values import GradientSource, Model, SiteTask
from fedmap.algorithm.prior.values import initial_prior
from fedmap.algorithm.seeding import torch_stream
from fedmap.algorithm.settings import FedmapSettings, PriorSettings, TrainingSettings
from fedmap.study.models import build_network
from fedmap.study.plan.sections import ModelSection
from fedmap_lab.federation.engines import keep_freed_memory
from tests.bench import authors_step
from tests.bench.rows import Row, best_seconds

FEATURES, BATCH, SKETCH = 2104, 32, 512


def measure(features: int = FEATURES, steps: int = 20, epochs: int = 3, turns: int = 12) -> Iterator[Row]:
    torch.set_num_threads(1)
    keep_freed_memory()
    drugs, diagnoses = features * 1411 // FEATURES, features - 7
    groups = {"drugs": (0, drugs), "diagnoses": (drugs, diagnoses), "physiology": (diagnoses, features)}
    columns = tuple((name, range(*ends)) for name, ends in groups.items())
    network = build_network(ModelSection(name="eicu_mortality"), columns, features, 2)
    model = Model(network, "categorical")
    plain = FedmapSettings(training=TrainingSettings(epochs=epochs, batch_size=BATCH))
    sketched = replace(plain, prior=PriorSettings(sketch=SKETCH))
    stream = torch_stream(1)
    rows = Examples(
        torch.randn(BATCH * steps, features, generator=stream),
        torch.randint(0, 2, (BATCH * steps,), generator=stream),
    )
    few = Examples(rows.features[:2], rows.target[:2])
    theta = network.initialise(0)
    priors = {s: initial_prior(network, s.prior, theta) for s in (plain, sketched)}

    def fit(settings: FedmapSettings, gradient: GradientSource, penalised: bool = True) -> None:
        prior = priors[settings]
        task = SiteTask(theta, prior.buffers, rows, few, seed=1)
        fit_sites(model, settings, prior, [task], gradient, penalised=penalised)

    best = best_seconds(
        {
            "none": lambda: fit(plain, "closed_form", penalised=False),
            "authors": lambda: authors_step.fit(network, plain, authors_step.cross_entropy, theta, rows, few),
            "autograd": lambda: fit(plain, "autograd"),
            "closed": lambda: fit(plain, "closed_form"),
            "sketched": lambda: fit(sketched, "closed_form"),
        },
        turns,
    )
    yield Row("step with closed-form prior against the authors' step", best["closed"] / best["authors"])
    yield Row("closed-form prior step against autograd", best["closed"] / best["autograd"], 0.5)
    yield Row("step with sketch against step without a prior", best["sketched"] / best["none"], 1.5)
