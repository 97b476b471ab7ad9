"""pFedFDA's class-conditional Gaussians: the head that they are, their mixture, and classes that a site
lacks.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from fedmap.study.plan.study_plan import StudyPlan
from fedmap_lab.federation.engines import VectorisedEngine
from fedmap_lab.federation.sites import load_federation
from fedmap_lab.methods.embedding import embedding_of
from fedmap_lab.methods.method import Run
from fedmap_lab.methods.pfedfda import CANDIDATES, ClassGaussians, PFedFda, best_share, class_shares, estimate
from tests.lab.conftest import MakeCohort, without_events


def sample(rows: int, shift: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, rows)
    centres = np.array([[shift, 0.0], [0.0, shift]])
    mixing = np.array([[1.0, 0.5], [0.0, 0.8]])
    return torch.tensor(centres[labels] + rng.normal(size=(rows, 2)) @ mixing), torch.tensor(labels)


def nothing() -> ClassGaussians:
    return ClassGaussians(torch.zeros(2, 2, dtype=torch.float64), torch.eye(2, dtype=torch.float64))


def test_the_head_is_the_linear_discriminant_of_the_gaussians() -> None:
    features, labels = sample(400, 2.0, 0)
    shares = class_shares(labels, 2)
    coefficients, intercepts = estimate(features, labels, nothing()).discriminants(shares)
    theirs = LinearDiscriminantAnalysis(solver="lsqr").fit(features.numpy(), labels.numpy())
    ours = features @ (coefficients[1] - coefficients[0]) + intercepts[1] - intercepts[0]
    assert np.abs(ours.numpy() - theirs.decision_function(features.numpy())).max() < 0.1


def test_a_class_that_a_site_lacks_keeps_the_shared_mean() -> None:
    shared = ClassGaussians(
        torch.tensor([[0.0, 0.0], [7.0, 7.0]], dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    )
    features, _ = sample(30, 1.0, 1)
    found = estimate(features, torch.zeros(30, dtype=torch.int64), shared)
    assert found.means[1].tolist() == [7.0, 7.0]
    assert torch.isfinite(found.discriminants(class_shares(torch.zeros(30, dtype=torch.int64), 2))[0]).all()


def test_a_site_unlike_the_federation_takes_its_own_gaussians_and_a_tiny_one_the_shared() -> None:
    features, labels = sample(300, 3.0, 2)
    own = estimate(features, labels, nothing())
    swapped = ClassGaussians(own.means.flip(0), own.covariance)
    assert best_share(features, labels, swapped, CANDIDATES, 0) > 0.8
    few, few_labels = sample(8, 0.4, 3)
    truth = estimate(*sample(4000, 0.4, 4), nothing())
    assert best_share(few, few_labels, truth, CANDIDATES, 0) < 0.6


def test_the_last_layer_of_a_personal_model_comes_from_its_gaussians_alone(
    binary_plan: StudyPlan, make_cohort: MakeCohort
) -> None:
    federation = load_federation(binary_plan, make_cohort({"east": (1, 90), "west": (1, 80)}))
    trained = PFedFda().train(Run(federation, VectorisedEngine(1), 2, 0), lambda _: None)
    embedding = embedding_of(federation.model)
    shared = ClassGaussians(trained.kept["means"], trained.kept["covariance"])
    assert trained.prior is not None
    rows = {site.name: float(len(site.data.train)) for site in federation.tier(1)}
    shares = sum(
        (
            rows[s.name] / sum(rows.values()) * class_shares(s.data.train.target, 2)
            for s in federation.tier(1)
        ),
        torch.zeros(2, dtype=torch.float64),
    )
    coefficients, intercepts = shared.discriminants(shares)
    head = torch.cat([coefficients[1] - coefficients[0], (intercepts[1] - intercepts[0])[None]]).float()
    assert trained.prior.mu[embedding.size :] == pytest.approx(head, abs=1e-5)
    east, west = (trained.personal[name].theta[embedding.size :] for name in ("east", "west"))
    assert not torch.equal(east, west)


def test_a_single_class_site_gets_a_model(binary_plan: StudyPlan, make_cohort: MakeCohort) -> None:
    directory = make_cohort({"east": (1, 90), "west": (1, 80), "north": (1, 70)})
    without_events(directory, "north")
    federation = load_federation(binary_plan, directory)
    trained = PFedFda().train(Run(federation, VectorisedEngine(1), 2, 0), lambda _: None)
    assert torch.isfinite(trained.personal["north"].theta).all()


def test_pfedfda_refuses_survival_with_the_reason(survival_plan: StudyPlan) -> None:
    reason = PFedFda().refusal(survival_plan, None)  # type: ignore[arg-type]
    assert reason is not None
    assert "survival" in reason
