"""The Gaussian-process head of pFedGP: its evidence against quadrature, its predictions against scikit-
learn.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from fedmap.algorithm.model.layers import Pass
from fedmap.algorithm.model.likelihood import Outcome
from fedmap.errors import ModelError
from fedmap.study.plan.study_plan import StudyPlan
from fedmap_lab.federation.engines import VectorisedEngine
from fedmap_lab.federation.sites import load_federation
from fedmap_lab.methods.method import Run
from fedmap_lab.methods.pfedgp import Evidence, Kernel, KernelHead, PFedGp, bound
from tests.lab.conftest import MakeCohort

KERNEL = Kernel(scale=4.0, length=0.5)


def exact_evidence(gram: np.ndarray, positive: np.ndarray) -> float:
    """log ∫ Π σ(±f) N(f; 0, K) df for two rows, by Gauss-Hermite quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    factor = np.linalg.cholesky(gram)
    total = 0.0
    for x, wx in zip(nodes, weights, strict=True):
        for y, wy in zip(nodes, weights, strict=True):
            f = factor @ np.array([x, y])
            total += wx * wy * float(np.prod(1 / (1 + np.exp(-np.where(positive, f, -f)))))
    return math.log(total / (2 * math.pi))


@pytest.mark.parametrize("labels", [(1, 1), (1, 0)])
def test_the_bound_lies_just_below_the_exact_log_evidence(labels: tuple[int, int]) -> None:
    gram = np.array([[4.0, 2.5], [2.5, 4.0]])
    positive = torch.tensor([labels], dtype=torch.float64)
    found = float(bound(torch.tensor(gram)[None], positive, torch.ones(1, 2, dtype=torch.float64)))
    exact = exact_evidence(gram, np.array(labels) > 0)
    assert exact - 0.15 < found <= exact + 1e-9


def test_padding_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    features = torch.tensor(rng.normal(size=(1, 7, 3)))
    label = torch.tensor([[1, 0, 1, 1, 0, 0, 1]])
    evidence = Evidence(KERNEL, 2)
    alone = evidence(features, Outcome(torch.ones(1, 7), label=label))
    padded = evidence(
        torch.cat([features, torch.full((1, 4, 3), 9.0, dtype=torch.float64)], dim=1),
        Outcome(
            torch.cat([torch.ones(1, 7), torch.zeros(1, 4)], dim=1),
            label=torch.cat([label, label[:, :4]], dim=1),
        ),
    )
    assert float(padded) == pytest.approx(float(alone), abs=1e-9)


def test_features_that_separate_the_classes_have_more_evidence() -> None:
    label = torch.tensor([[0, 1] * 10])
    outcome = Outcome(torch.ones(1, 20), label=label)
    apart = (label.double() * 4 - 2).unsqueeze(-1)
    mixed = torch.linspace(-2, 2, 20, dtype=torch.float64).view(1, 20, 1)
    evidence = Evidence(KERNEL, 2)
    assert float(evidence(apart, outcome)) < float(evidence(mixed, outcome)) - 3


def predicted(head: KernelHead, features: np.ndarray, labels: np.ndarray, at: np.ndarray) -> torch.Tensor:
    flat = head.conditioned(torch.tensor(features), torch.tensor(labels)).double()
    sizes = [math.prod(shape) for _, shape in head.parameters()]
    parts = torch.split(flat, sizes)
    params = tuple(part.view(1, *shape) for part, (_, shape) in zip(parts, head.parameters(), strict=True))
    return head.forward(params, torch.tensor(at)[None], Pass(training=False))[0][0]


def test_the_head_separates_what_no_linear_head_can_and_agrees_with_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    features = rng.normal(size=(60, 2))
    labels = (features[:, 0] * features[:, 1] > 0).astype(int)  # exclusive or
    at = rng.normal(size=(40, 2))
    head = KernelHead(width=2, rows=80, outputs=1, kernel=KERNEL)
    ours = torch.sigmoid(predicted(head, features, labels, at)[:, 0]).numpy()
    kernel = ConstantKernel(4.0, "fixed") * RBF(0.5 * math.sqrt(2), "fixed")
    theirs = GaussianProcessClassifier(kernel, optimizer=None).fit(features, labels).predict_proba(at)[:, 1]
    assert np.abs(ours - theirs).max() < 0.08
    assert ((ours > 0.5) == (at[:, 0] * at[:, 1] > 0)).mean() > 0.8


def test_several_classes_get_probabilities_that_rank_the_true_one_first() -> None:
    rng = np.random.default_rng(2)
    labels = np.repeat([0, 1, 2], 15)
    centres = np.array([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]])
    features = centres[labels] + rng.normal(0, 0.3, (45, 2))
    logits = predicted(KernelHead(2, 45, 3, KERNEL), features, labels, centres)
    assert logits.argmax(1).tolist() == [0, 1, 2]


def test_a_head_is_conditioned_and_never_trained() -> None:
    head = KernelHead(2, 4, 1, KERNEL)
    with pytest.raises(ModelError, match="cannot be trained"):
        head.forward(
            tuple(torch.zeros(1, *shape) for _, shape in head.parameters()), torch.zeros(1, 2, 2), Pass(True)
        )


def test_sites_of_pfedgp_share_the_network_and_keep_a_process_of_their_own(
    binary_plan: StudyPlan, make_cohort: MakeCohort
) -> None:
    federation = load_federation(binary_plan, make_cohort({"east": (1, 90), "west": (1, 80)}))
    trained = PFedGp(rows=32).train(Run(federation, VectorisedEngine(1), 1, 0), lambda _: None)
    size = trained.kept["network"].numel()
    east, west = (trained.personal[name].theta for name in ("east", "west"))
    assert torch.equal(east[:size], west[:size])
    assert not torch.equal(east[size:], west[size:])
    assert trained.prior is None


def test_pfedgp_refuses_survival_with_the_reason(survival_plan: StudyPlan) -> None:
    reason = PFedGp().refusal(survival_plan, None)  # type: ignore[arg-type]
    assert reason is not None
    assert "survival" in reason
