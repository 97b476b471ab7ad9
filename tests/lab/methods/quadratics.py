"""Sites whose loss is a known quadratic, a_k/2 ‖θ − t_k‖², and an engine that takes a rule's steps on it.

What a method converges to is then known in closed form, and its local rule and its server are tested
together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedmap.algorithm.examples import Examples
from fedmap.algorithm.fit.adam import Adam
from fedmap.algorithm.fit.rule import FitStart, LocalRule
from fedmap.algorithm.fit.values import FailedFit, LocalFit, Model, SiteTask
from fedmap.algorithm.model.layers import Linear
from fedmap.algorithm.model.network import Network
from fedmap.algorithm.pooling.statistics import Scaler
from fedmap.algorithm.prior.values import Prior
from fedmap.algorithm.settings import FedmapSettings
from fedmap.data.table.site_dataset import FeatureLayout, SiteDataset
from fedmap.study.plan.reading import parse_plan
from fedmap_lab.federation.sites import Federation, Site
from tests.lab.conftest import BINARY_PLAN

NETWORK = Network(2, 1, (), (Linear(2, 1),))  # three parameters


class QuadraticEngine:
    """Every site takes `steps` of the rule from its start; Adam on its quadratic where there is no rule."""

    def __init__(
        self, curvature: Mapping[int, float], target: Mapping[int, Tensor], steps: int, rate: float = 0.02
    ) -> None:
        """By the number of a site's rows, which is all that a task says about its site."""
        self._curvature, self._target = curvature, target
        self._steps, self._rate = steps, rate

    def fit(
        self,
        model: Model,  # noqa: ARG002
        settings: FedmapSettings,  # noqa: ARG002
        prior: Prior,  # noqa: ARG002
        tasks: Sequence[SiteTask],
        penalised: bool = True,  # noqa: ARG002
        rule: LocalRule | None = None,
    ) -> list[LocalFit | FailedFit]:
        rows = [len(task.train) for task in tasks]
        theta = torch.stack([task.theta for task in tasks]).clone()
        a = torch.tensor([[self._curvature[n]] for n in rows])
        t = torch.stack([self._target[n] for n in rows])
        beside = torch.stack(
            [torch.zeros(0, len(task.theta)) if task.beside is None else task.beside for task in tasks]
        ).clone()
        start = FitStart(theta, torch.tensor(rows).float(), [task.seed for task in tasks], self._rate)
        if rule is None:
            adam = Adam(theta, self._rate)
            for _ in range(self._steps):
                adam.step(theta, a * (theta - t))
        else:
            taking = rule.begin(start)
            for _ in range(self._steps):
                taking.step(theta, beside, lambda at: a * (at - t))
        return [
            LocalFit(
                theta=theta[i].clone(),
                buffers=task.buffers,
                log_omega=float(torch.tensor(float(rows[i])).log()),
                loss=1.0,
                penalty=0.0,
                rows=rows[i],
                epochs=1,
                best_epoch=1,
                validation_loss=None,
                beside=beside[i].clone() if beside.shape[1] else None,
            )
            for i, task in enumerate(tasks)
        ]


def quadratic_federation(rows: Sequence[int]) -> Federation:
    """Sites named by their number of rows; what the rows hold is never looked at."""
    layout = FeatureLayout(("a", "b"), (True, True), ())
    sites = []
    for count in rows:
        part = Examples(torch.zeros(count, 2), torch.arange(count) % 2)
        data = SiteDataset(f"site-{count}", layout, part, part, part, (), ())
        sites.append(Site(f"site-{count}", 1, "", data))
    return Federation(
        plan=parse_plan(BINARY_PLAN, "toy.toml"),
        model=Model(NETWORK, "bernoulli"),
        settings=FedmapSettings(),
        sites=tuple(sites),
        excluded=(),
        scaler=Scaler(torch.zeros(2), torch.ones(2)),
    )
