"""What the prior costs in a training step of the eICU network: autograd, closed form, sketch, none."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fedmap.algorithm.examples import Examples
from fedmap.algorithm.fit.fitting import fit_sites
from fedmap.algorithm.fit.values import GradientSource, Model, SiteTask
from fedmap.algorithm.prior.values import initial_prior
from fedmap.algorithm.seeding import torch_stream
from fedmap.algorithm.settings import FedmapSettings, PriorSettings, TrainingSettings
from fedmap.study.models import build_network
from fedmap.study.plan.sections import ModelSection
from fedmap_lab.bench.timing import best_seconds
from fedmap_lab.federation.engines import keep_freed_memory

GROUPS = (("drugs", range(1411)), ("diagnoses", range(1411, 2097)), ("physiology", range(2097, 2104)))
FEATURES, BATCH, STEPS, EPOCHS = 2104, 32, 20, 3
SKETCH = 512


@dataclass(frozen=True)
class PriorStep:
    """Seconds per training step."""

    none: float
    autograd: float  # R from scratch each step, differentiated by autograd
    closed_form: float  # μ-part cached, gradient in closed form
    sketched: float  # the same behind a sketch


def measure_prior_step(turns: int = 12) -> PriorStep:
    torch.set_num_threads(1)
    keep_freed_memory()
    network = build_network(ModelSection(name="eicu_mortality"), GROUPS, FEATURES, 2)
    model = Model(network, "categorical")
    plain = FedmapSettings(training=TrainingSettings(epochs=EPOCHS, batch_size=BATCH))
    sketched = replace(plain, prior=PriorSettings(sketch=SKETCH))
    stream = torch_stream(1)
    rows = Examples(
        torch.randn(BATCH * STEPS, FEATURES, generator=stream),
        torch.randint(0, 2, (BATCH * STEPS,), generator=stream),
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
            "autograd": lambda: fit(plain, "autograd"),
            "closed_form": lambda: fit(plain, "closed_form"),
            "sketched": lambda: fit(sketched, "closed_form"),
        },
        turns,
    )
    return PriorStep(**{name: seconds / (STEPS * EPOCHS) for name, seconds in best.items()})
