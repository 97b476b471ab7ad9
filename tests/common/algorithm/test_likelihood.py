"""Likelihoods against values worked out by hand, brute force, lifelines and torch; and their invariances."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from lifelines import CoxPHFitter
from scipy import optimize
from scipy.special import logsumexp
from torch import Tensor

from fedmap.algorithm.examples import Examples
from fedmap.algorithm.fit.batches import pack
from fedmap.algorithm.model.likelihood import (
    LikelihoodName,
    Outcome,
    negative_log_likelihood,
    output_gradient,
    risk_sets,
)

Floats = npt.NDArray[np.float64]

quick = settings(max_examples=60)


@dataclass(frozen=True)
class Survival:
    """Rows of one site, in any order."""

    eta: Floats
    time: Floats
    event: npt.NDArray[np.bool_]

    def permuted(self, order: Sequence[int]) -> Survival:
        at = np.asarray(order, dtype=np.int64)
        return Survival(self.eta[at], self.time[at], self.event[at])

    def with_eta(self, eta: Floats) -> Survival:
        return Survival(eta, self.time, self.event)


def survival(eta: Sequence[float], time: Sequence[float], event: Sequence[int]) -> Survival:
    return Survival(np.array(eta, dtype=float), np.array(time, dtype=float), np.array(event, dtype=bool))


def cox(rows: Survival, dtype: torch.dtype = torch.float64) -> tuple[float, Floats]:
    """L and ∂L/∂η in the given order of rows."""
    order = np.argsort(-rows.time, kind="stable")
    loss, gradient = cox_batch([rows.permuted(order.tolist())], dtype, len(rows.eta))
    unsorted = np.empty_like(rows.eta)
    unsorted[order] = gradient[0]
    return float(loss[0]), unsorted


def cox_batch(sites: Sequence[Survival], dtype: torch.dtype, width: int) -> tuple[Floats, Floats]:
    """L (S,) and ∂L/∂η (S, width) of sites with sorted rows, padded to `width`."""
    shape = (len(sites), width)
    eta, time, event, weight = np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=bool), np.zeros(shape)
    for k, site in enumerate(sites):
        rows = len(site.eta)
        eta[k, :rows], time[k, :rows], event[k, :rows], weight[k, :rows] = site.eta, site.time, site.event, 1
    counts = np.array([len(site.eta) for site in sites])
    outcome = Outcome(torch.from_numpy(weight.astype(np.float32)), risk=risk_sets(time, event, counts))
    outputs = torch.from_numpy(eta).to(dtype).unsqueeze(-1)
    loss = negative_log_likelihood("cox", outputs, outcome)
    gradient = output_gradient("cox", outputs, outcome)
    assert loss.dtype == gradient.dtype == dtype
    return loss.double().numpy(), gradient[..., 0].double().numpy()


def efron(rows: Survival) -> float:
    """−log of Cox's partial likelihood with Efron's ties, straight from its definition, in log space."""
    total = 0.0
    for moment in np.unique(rows.time[rows.event]):
        tied = rows.eta[(rows.time == moment) & rows.event]
        others = rows.eta[(rows.time >= moment) & ~((rows.time == moment) & rows.event)]
        for done in range(len(tied)):
            left = math.log1p(-done / len(tied))
            total += float(logsumexp(np.concatenate([others, tied + left]))) - float(tied[done])
    return total


@st.composite
def survivals(draw: st.DrawFn, largest: float = 5.0, events: bool | None = None) -> Survival:
    rows = draw(st.integers(1, 12))
    eta = draw(st.lists(st.floats(-largest, largest, width=32), min_size=rows, max_size=rows))
    time = draw(st.lists(st.integers(1, 5), min_size=rows, max_size=rows))
    happened = st.booleans() if events is None else st.just(events)
    return survival(eta, time, draw(st.lists(happened, min_size=rows, max_size=rows)))


LOG_2, LOG_3, LOG_5 = math.log(2), math.log(3), math.log(5)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # No ties: 3/3 at t = 2, then 1/4 at t = 1.
        pytest.param(survival([0, LOG_3], [1, 2], [1, 1]), math.log(4), id="no ties"),
        # Both events at t = 1 among weights 1, 2, 3: (1 · 2) / (6 · (6 − 3/2)); at t = 2: 3/3.
        pytest.param(survival([0, LOG_2, LOG_3], [1, 1, 2], [1, 1, 1]), math.log(13.5), id="two tied"),
        # All three at once: (1 · 2 · 3) / (6 · 4 · 2).
        pytest.param(survival([0, LOG_2, LOG_3], [7, 7, 7], [1, 1, 1]), math.log(8), id="three tied"),
        # A row censored at the time of an event is still at risk: 2 / (2 + 3 + 5).
        pytest.param(survival([LOG_2, LOG_3, LOG_5], [1, 1, 2], [1, 0, 0]), math.log(5), id="tied censoring"),
        # A row censored before the event is not: 2 / (2 + 5).
        pytest.param(
            survival([LOG_2, LOG_3, LOG_5], [2, 1, 3], [1, 0, 0]), math.log(3.5), id="censored before"
        ),
        pytest.param(survival([LOG_2], [1], [1]), 0.0, id="one row alone"),
        pytest.param(survival([1.0, -2.0], [1, 1], [0, 0]), 0.0, id="no event"),
    ],
)
def test_cox_on_tiny_cases_worked_out_by_hand(rows: Survival, expected: float) -> None:
    assert efron(rows) == pytest.approx(expected, abs=1e-12)
    assert cox(rows)[0] == pytest.approx(expected, abs=1e-7)


@quick
@given(survivals())
def test_the_cox_gradient_is_that_of_efrons_definition(rows: Survival) -> None:
    step = 1e-4
    numeric = [
        (efron(rows.with_eta(rows.eta + axis)) - efron(rows.with_eta(rows.eta - axis))) / (2 * step)
        for axis in step * np.eye(len(rows.eta))
    ]
    np.testing.assert_allclose(cox(rows)[1], numeric, atol=1e-5)


@quick
@given(st.lists(survivals(), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_packed_survival_rows_give_each_site_its_own_likelihood(
    sites: list[Survival], random: Random
) -> None:
    """The path a fit takes: rows in any order are sorted and padded by `pack`."""
    parts: list[Examples] = []
    for site in sites:
        order = list(range(len(site.eta)))
        random.shuffle(order)
        mixed = site.permuted(order)
        parts.append(
            Examples(
                torch.from_numpy(mixed.eta).float().unsqueeze(1),
                torch.from_numpy(mixed.time),
                torch.from_numpy(mixed.event),
            )
        )
    packed = pack(parts, "cox")
    losses = negative_log_likelihood("cox", packed.features.double(), packed.outcome())
    np.testing.assert_allclose(losses.numpy(), [efron(site) for site in sites], rtol=1e-6, atol=1e-6)


def test_a_site_of_padding_only_has_no_loss_beside_a_site_with_rows() -> None:
    nobody = survival([], [], [])
    loss, gradient = cox_batch([survival([0.0, 0.0], [2, 1], [1, 1]), nobody], torch.float64, 2)
    np.testing.assert_allclose(loss, [math.log(2), 0.0], atol=1e-12)
    np.testing.assert_allclose(gradient, [[0.5, -0.5], [0.0, 0.0]], atol=1e-12)


@quick
@given(survivals(largest=60.0, events=False))
def test_a_batch_without_events_has_neither_loss_nor_gradient(rows: Survival) -> None:
    for dtype in (torch.float32, torch.float64):
        loss, gradient = cox(rows, dtype)
        assert loss == 0.0
        assert not gradient.any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_cox_stays_finite_and_right_for_log_hazards_up_to_sixty(dtype: torch.dtype) -> None:
    @settings(max_examples=150)
    @given(survivals(largest=60.0))
    def check(rows: Survival) -> None:
        loss, gradient = cox(rows, dtype)
        assert loss == pytest.approx(efron(rows), rel=1e-5, abs=1e-4)
        assert np.isfinite(gradient).all()
        assert (np.abs(gradient) <= len(rows.eta)).all()

    check()


def test_a_lone_survivor_far_below_the_rest_stays_finite_in_float32() -> None:
    # The last at risk has e^η = e^−120 of the largest: a common shift by max η takes it to zero.
    loss, gradient = cox(survival([-60.0, 60.0], [2, 1], [1, 1]), torch.float32)
    assert loss == pytest.approx(0.0, abs=1e-4)
    np.testing.assert_allclose(gradient, [0.0, 0.0], atol=1e-6)


@dataclass(frozen=True)
class Fitted:
    """A Cox regression by lifelines, with the data it was fitted to."""

    features: Floats
    time: Floats
    event: npt.NDArray[np.bool_]
    fitter: CoxPHFitter

    def loss(self, beta: Floats) -> tuple[float, Floats]:
        loss, by_eta = cox(Survival(self.features @ beta, self.time, self.event))
        return loss, self.features.T @ by_eta


@pytest.fixture(scope="module", params=[0, 1], ids=["few ties", "many ties"])
def fitted(request: pytest.FixtureRequest) -> Fitted:
    rng = np.random.default_rng(17)
    features = rng.normal(size=(120, 3)) * [1.0, 2.0, 0.5] + [0.0, 3.0, -1.0]
    happens = rng.exponential(np.exp(-features @ [0.6, -0.3, 0.4]))
    leaves = rng.exponential(2 * float(np.median(happens)), 120)
    time = np.minimum(happens, leaves)
    digits = 8.0 if request.param else 60.0
    time = np.ceil(time / np.quantile(time, 0.9) * digits)
    event = happens <= leaves
    assert len(np.unique(time[event])) < event.sum(), "the data have no ties"
    frame = pd.DataFrame(features, columns=["a", "b", "c"]).assign(time=time, event=event)
    fitter = CoxPHFitter().fit(
        frame, "time", "event", fit_options={"precision": 1e-11, "r_precision": 1e-14, "step_size": 1.0}
    )
    return Fitted(features, time, event, fitter)


def test_the_likelihood_at_lifelines_optimum_is_lifelines_own(fitted: Fitted) -> None:
    beta = fitted.fitter.params_.to_numpy()
    assert -fitted.loss(beta)[0] == pytest.approx(fitted.fitter.log_likelihood_, abs=1e-6)
    null = -fitted.loss(np.zeros(3))[0]
    ratio = 2 * (fitted.fitter.log_likelihood_ - null)
    assert ratio == pytest.approx(fitted.fitter.log_likelihood_ratio_test().test_statistic, abs=1e-5)


def test_minimising_the_likelihood_gives_lifelines_coefficients(fitted: Fitted) -> None:
    found = optimize.minimize(
        fitted.loss, np.zeros(3), jac=True, method="L-BFGS-B", options={"ftol": 1e-16, "gtol": 1e-9}
    )
    np.testing.assert_allclose(found.x, fitted.fitter.params_.to_numpy(), rtol=0, atol=1e-6)


def classes(seed: int, outputs: int, rows: Sequence[int], scale: float = 3.0) -> tuple[Tensor, Outcome]:
    """Outputs and labels for sites of `rows` rows, padded to the longest with rows that are not zero."""
    generator = torch.Generator().manual_seed(seed)
    width = max(rows)
    x = scale * torch.randn(len(rows), width, outputs, generator=generator, dtype=torch.float64)
    label = torch.randint(0, max(outputs, 2), (len(rows), width), generator=generator)
    weight = (torch.arange(width) < torch.tensor(rows)[:, None]).float()
    return x, Outcome(weight, label=label)


def _labels(outcome: Outcome) -> Tensor:
    assert outcome.label is not None
    return outcome.label


def _bernoulli_by_torch(x: Tensor, label: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(x[:, 0], label.double(), reduction="sum")


def _categorical_by_torch(x: Tensor, label: Tensor) -> Tensor:
    return F.cross_entropy(x, label, reduction="sum")


@pytest.mark.parametrize("scale", [0.1, 3.0, 60.0])
@pytest.mark.parametrize(
    ("name", "outputs", "reference"),
    [
        ("bernoulli", 1, _bernoulli_by_torch),
        ("categorical", 2, _categorical_by_torch),
        ("categorical", 5, _categorical_by_torch),
    ],
)
def test_classification_likelihoods_are_torchs(
    name: LikelihoodName, outputs: int, reference: Callable[[Tensor, Tensor], Tensor], scale: float
) -> None:
    rows = (6, 9, 1)
    x, outcome = classes(3, outputs, rows, scale)
    loss = negative_log_likelihood(name, x, outcome)
    gradient = output_gradient(name, x, outcome)
    for k, count in enumerate(rows):
        leaf = x[k, :count].clone().requires_grad_()
        expected = reference(leaf, _labels(outcome)[k, :count])
        assert float(loss[k]) == pytest.approx(float(expected.detach()), rel=1e-7, abs=1e-7)
        by_torch = torch.autograd.grad(expected, leaf)[0]
        np.testing.assert_allclose(gradient[k, :count], by_torch, atol=1e-7)
        assert not gradient[k, count:].any(), "padding has a gradient"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("name", "outputs"), [("bernoulli", 1), ("categorical", 3)])
def test_classification_likelihoods_stay_finite_for_huge_outputs(
    name: LikelihoodName, outputs: int, dtype: torch.dtype
) -> None:
    x, outcome = classes(9, outputs, (40,), scale=1e4)
    loss = negative_log_likelihood(name, x.to(dtype), outcome)
    gradient = output_gradient(name, x.to(dtype), outcome)
    assert torch.isfinite(loss).all()
    assert torch.isfinite(gradient).all()
    assert float(gradient.abs().max()) <= 1.0
