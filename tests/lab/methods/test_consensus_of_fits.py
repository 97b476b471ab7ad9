"""Where consensus rounds come to rest with the product's own fits: Adam on mini-batches, the best epoch kept.

A linear model on a few small sites, so that the minimiser of the weighted mean loss is unique and known. The
fits have to be long enough to come near their own optimum: with two epochs at a tenth of this learning rate μ
swings about the minimiser and does not settle.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedmap.algorithm.examples import Examples
from fedmap.algorithm.fit.values import Model
from fedmap.algorithm.model.layers import Linear
from fedmap.algorithm.model.network import Network
from fedmap.algorithm.pooling.statistics import Scaler
from fedmap.algorithm.settings import (
    AggregationSettings,
    FedmapSettings,
    PriorSettings,
    StartRule,
    TrainingSettings,
)
from fedmap.data.table.site_dataset import FeatureLayout, SiteDataset
from fedmap.study.plan.reading import parse_plan
from fedmap_lab.federation.engines import VectorisedEngine
from fedmap_lab.federation.sites import Federation, Site
from fedmap_lab.methods.fedmap import FedMap
from fedmap_lab.methods.method import Progress, Run
from tests.lab.conftest import BINARY_PLAN

ROWS = (40, 60, 100, 150)
INPUTS = 2


def part_of(rows: int, law: Tensor, stream: torch.Generator) -> Examples:
    """`law`: the spread of the two inputs, their slopes and the intercept."""
    features = torch.randn(rows, INPUTS, generator=stream) * law[:INPUTS]
    risk = torch.sigmoid(features @ law[INPUTS:-1] + law[-1])
    return Examples(features, torch.bernoulli(risk, generator=stream).long())


def logistic_federation(start: StartRule, rounds: int) -> Federation:
    """Sites that differ in size, in the spread of their inputs and in what these mean.

    All rounds but the last are consensus rounds.
    """
    stream, sites = torch.Generator().manual_seed(1), []
    for rows in ROWS:
        spread = 0.5 + 2 * torch.rand(INPUTS, generator=stream)
        law = torch.cat([spread, torch.randn(INPUTS + 1, generator=stream)])
        train, validation = part_of(rows, law, stream), part_of(rows // 2, law, stream)
        layout = FeatureLayout(("a", "b"), (True, True), ())
        data = SiteDataset(f"site-{rows}", layout, train, validation, validation, (), ())
        sites.append(Site(data.site, 1, "", data))
    settings = FedmapSettings(
        PriorSettings(convex=False, alpha=0.05),
        TrainingSettings(
            epochs=10, batch_size=32, learning_rate=1e-2, start=start, consensus_share=1 - 1 / rounds
        ),
        AggregationSettings(weighting="sample_count"),
    )
    return Federation(
        plan=parse_plan(BINARY_PLAN, "toy.toml"),
        model=Model(Network(INPUTS, 1, (), (Linear(INPUTS, 1),)), "bernoulli"),
        settings=settings,
        sites=tuple(sites),
        excluded=(),
        scaler=Scaler(torch.zeros(INPUTS), torch.ones(INPUTS)),
    )


def minimiser(parts: list[Examples]) -> Tensor:
    """Of the mean loss over the rows of all parts, by Newton's method: slopes and intercept."""
    features = torch.cat([torch.cat([part.features, torch.ones(len(part), 1)], 1) for part in parts]).double()
    target = torch.cat([part.target for part in parts]).double()
    theta = torch.zeros(INPUTS + 1, dtype=torch.float64)
    for _ in range(20):
        risk = torch.sigmoid(features @ theta)
        bend = features.T @ (features * (risk * (1 - risk)).unsqueeze(1))
        theta -= torch.linalg.solve(bend, features.T @ (risk - target))
    return theta.float()


@pytest.mark.parametrize(("start", "rounds"), [("global", 46), ("local", 91)])  # from μ they settle sooner
def test_consensus_rounds_settle_near_the_minimiser_of_the_mean_loss_by_rows(
    start: StartRule, rounds: int
) -> None:
    federation = logistic_federation(start, rounds)
    seen: list[Progress] = []
    FedMap().train(Run(federation, VectorisedEngine(workers=1), rounds, 5), seen.append)
    parts = [site.data.train for site in federation.sites]
    expected = minimiser(parts)
    mu = [progress.prior.mu for progress in seen[:-1] if progress.prior is not None]
    away = torch.stack(mu).sub(expected).norm(dim=1)  # (consensus rounds,)
    assert float(away[0]) > 0.25
    assert float(away[-10:].max()) < 0.15, "μ came to rest, and there"
    own_optima = torch.stack([minimiser([part]) for part in parts])
    mean_of_optima = torch.tensor(ROWS, dtype=torch.float32) @ own_optima / sum(ROWS)
    assert float((mean_of_optima - expected).norm()) > 0.5, "the test could not tell them apart"
