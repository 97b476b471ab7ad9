"""A site's half of a round: the objective by hand, two gradients, many sites at once, stopping, failure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmap.algorithm.examples import Examples
from fedmap.algorithm.fit.fitting import fit_local, fit_sites
from fedmap.algorithm.fit.values import FailedFit, GradientSource, LocalFit, Model, SiteTask
from fedmap.algorithm.model.layers import BatchNorm, Buffers, Linear, Relu
from fedmap.algorithm.model.likelihood import LikelihoodName, Outcome, negative_log_likelihood
from fedmap.algorithm.model.network import Network
from fedmap.algorithm.prior.convex_network import ConvexNetwork
from fedmap.algorithm.prior.values import Prior, initial_prior
from fedmap.algorithm.settings import (
    AggregationSettings,
    FedmapSettings,
    PriorSettings,
    TrainingSettings,
    WeightingRule,
)
from fedmap.errors import TrainingError
from tests.common.algorithm.examples import make_model, make_rows

LIKELIHOODS: tuple[LikelihoodName, ...] = ("bernoulli", "categorical", "cox")
GRADIENTS: tuple[GradientSource, ...] = get_args(GradientSource)
SMALL_PRIOR = PriorSettings(hidden=(4, 3))


def _settings(prior: PriorSettings = SMALL_PRIOR, **training: float) -> FedmapSettings:
    fixed = {"epochs": 4, "batch_size": 8, "learning_rate": 0.003, "patience": 50} | training
    return FedmapSettings(prior=prior, training=TrainingSettings(**fixed))  # type: ignore[arg-type]


def _task(model: Model, train: Examples, validation: Examples, seed: int = 0) -> SiteTask:
    start = model.network.initialise(seed + 100)
    return SiteTask(start, model.network.initial_buffers(), train, validation, seed)


def _prior(model: Model, settings: FedmapSettings) -> Prior:
    return initial_prior(model.network, settings.prior, model.network.initialise(1))


def _fitted(fit: LocalFit | FailedFit) -> LocalFit:
    assert isinstance(fit, LocalFit)
    return fit


def _same(one: LocalFit, other: LocalFit, atol: float = 0.0) -> bool:
    pairs = [
        (one.theta, other.theta),
        (one.buffers.mean, other.buffers.mean),
        (one.buffers.variance, other.buffers.variance),
    ]
    close = all(torch.allclose(a, b, rtol=atol, atol=atol) if atol else torch.equal(a, b) for a, b in pairs)
    counts = torch.equal(one.buffers.count, other.buffers.count)
    return close and counts and (one.epochs, one.best_epoch) == (other.epochs, other.best_epoch)


class HandSite:
    """Three rows, one feature, φ(x) = wx + b, and R with one unit a layer: everything by plain formulas."""

    x = np.array([0.5, -1.0, 2.0])
    y = np.array([1.0, 0.0, 1.0])
    mu = np.array([0.2, -0.3])
    a, b = np.array([0.6, -0.4]), np.array([0.3, 0.5])  # one number per tensor: weight, bias
    b1, u = np.array([0.1, -0.2]), np.array([0.8, 0.5])
    b2, v = np.array([-0.1, 0.3]), np.array([0.7, 1.1])
    alpha, epsilon = 0.2, 0.01

    def psi(self) -> Tensor:
        parts = (self.a, self.b, self.b1, self.u, self.b2, self.v)
        return torch.from_numpy(np.concatenate(parts)).float()

    def loss(self, theta: NDArray[np.float64]) -> float:
        logit = theta[0] * self.x + theta[1]
        return float((np.log1p(np.exp(logit)) - self.y * logit).sum())

    def penalty(self, theta: NDArray[np.float64]) -> float:
        first = self.a * theta + self.b * self.mu + self.b1
        second = self.u * np.log1p(np.exp(first)) + self.b2
        f = (self.v * np.log1p(np.exp(second))).sum()
        quadratic = self.alpha * ((theta - self.mu) ** 2).sum()
        return float(f + quadratic + self.epsilon * ((theta**2).sum() + (self.mu**2).sum()))

    def gradient(self, theta: NDArray[np.float64]) -> NDArray[np.float64]:
        residual = 1 / (1 + np.exp(-(theta[0] * self.x + theta[1]))) - self.y
        likelihood = np.array([(residual * self.x).sum(), residual.sum()]) / 3
        first = self.a * theta + self.b * self.mu + self.b1
        second = self.u * np.log1p(np.exp(first)) + self.b2
        f = self.v / (1 + np.exp(-second)) * self.u / (1 + np.exp(-first)) * self.a
        return np.asarray(
            likelihood + f + 2 * self.alpha * (theta - self.mu) + 2 * self.epsilon * theta, np.float64
        )

    def train(self, theta: NDArray[np.float64], steps: int, rate: float) -> NDArray[np.float64]:
        m, s = np.zeros(2), np.zeros(2)
        for step in range(1, steps + 1):
            g = self.gradient(theta)
            m, s = 0.9 * m + 0.1 * g, 0.999 * s + 0.001 * g**2
            theta = theta - rate * (m / (1 - 0.9**step)) / (np.sqrt(s / (1 - 0.999**step)) + 1e-8)
        return theta


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize(
    ("rule", "log_omega"),
    [
        ("per_sample", lambda loss, penalty: -(loss / 3 + penalty)),
        ("literal", lambda loss, penalty: -loss - penalty),
        ("reference", lambda loss, penalty: -(loss + penalty) / 3),
        ("sample_count", lambda _, __: math.log(3)),
    ],
)
def test_five_full_batch_steps_on_the_map_objective_by_hand(
    gradient: GradientSource, rule: WeightingRule, log_omega: Callable[[float, float], float]
) -> None:
    hand = HandSite()
    model = Model(Network(1, 1, (), (Linear(1, 1),)), "bernoulli")
    settings = FedmapSettings(
        PriorSettings(hand.alpha, hand.epsilon, hidden=(1, 1)),
        TrainingSettings(epochs=5, batch_size=8, learning_rate=0.1),
        AggregationSettings(weighting=rule),
    )
    rows = Examples(torch.from_numpy(hand.x).float()[:, None], torch.from_numpy(hand.y).long())
    nothing = Examples(torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64))
    prior = Prior(torch.from_numpy(hand.mu).float(), model.network.initial_buffers(), hand.psi())
    start = np.array([-0.4, 0.9])
    task = SiteTask(torch.from_numpy(start).float(), prior.buffers, rows, nothing, seed=0)
    fit = fit_local(model, settings, prior, task, gradient)

    theta = hand.train(start, 5, 0.1)
    loss, penalty = hand.loss(theta), hand.penalty(theta)
    assert fit.theta.tolist() == pytest.approx(theta.tolist(), abs=1e-5)
    assert fit.loss == pytest.approx(loss, abs=1e-5)
    assert fit.penalty == pytest.approx(penalty, abs=1e-5)
    assert fit.log_omega == pytest.approx(log_omega(loss, penalty), abs=1e-5)
    assert fit.rows == 3


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_a_fit_with_batch_norm_is_what_torchs_own_modules_give(gradient: GradientSource) -> None:
    """θ and the running statistics after 20 full batches, against torch.nn and torch.optim."""
    network = Network(4, 1, (), (Linear(4, 5), Relu(), BatchNorm(5), Linear(5, 1)))
    model = Model(network, "bernoulli")
    prior_settings = PriorSettings(convex=False, alpha=0.1)
    settings = _settings(prior_settings, epochs=20, batch_size=64, learning_rate=0.01, weight_decay=0.01)
    rows, prior = make_rows("bernoulli", 40, 0), _prior(model, settings)
    task = _task(model, rows, make_rows("bernoulli", 0, 0))
    fit = fit_local(model, settings, prior, task, gradient)

    norm = torch.nn.BatchNorm1d(5)
    modules = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), norm, torch.nn.Linear(5, 1))
    torch.nn.utils.vector_to_parameters(task.theta.clone(), modules.parameters())
    optimiser = torch.optim.Adam(modules.parameters(), lr=0.01, weight_decay=0.01)
    for _ in range(20):
        logit = modules(rows.features)[:, 0]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, rows.target.float())
        theta = torch.nn.utils.parameters_to_vector(modules.parameters())
        loss = loss + 0.1 * (theta - prior.mu).square().sum() + 1e-4 * theta.square().sum()
        grads = torch.autograd.grad(loss, list(modules.parameters()))
        for parameter, grad in zip(modules.parameters(), grads, strict=True):
            parameter.grad = grad
        optimiser.step()
    assert norm.running_mean is not None
    assert norm.running_var is not None
    expected = torch.nn.utils.parameters_to_vector(modules.parameters()).detach()
    assert torch.allclose(fit.theta, expected, atol=1e-5)
    assert torch.allclose(fit.buffers.mean, norm.running_mean, atol=1e-5)
    assert torch.allclose(fit.buffers.variance, norm.running_var, atol=1e-5)
    assert fit.buffers.count.tolist() == [20]


UNEQUAL = (5, 16, 17, 30, 2, 8, 9, 41)  # batch 8: smaller, remainder 0, 1, 6, two rows, one batch, 1, 1


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_sites_that_stop_at_different_epochs_are_fitted_as_if_alone(likelihood: LikelihoodName) -> None:
    model = make_model(likelihood)
    settings = _settings(epochs=12, patience=1)
    prior = _prior(model, settings)
    for case in range(70, 400, 10):
        tasks = [
            _task(model, make_rows(likelihood, rows, i), make_rows(likelihood, 12, case + i), seed=i)
            for i, rows in enumerate(UNEQUAL)
        ]
        together = [_fitted(fit) for fit in fit_sites(model, settings, prior, tasks)]
        if len({fit.epochs for fit in together}) >= 3:
            break
    else:
        pytest.fail("no case stopped its sites at three different epochs")
    for task, fit in zip(tasks, together, strict=True):
        alone = fit_local(model, settings, prior, task, "closed_form")
        assert _same(fit, alone, atol=1e-5)
        assert fit.rows == alone.rows == len(task.train)
        assert fit.log_omega == pytest.approx(alone.log_omega, abs=1e-5)
        assert fit.validation_loss == pytest.approx(alone.validation_loss, abs=1e-5)


@pytest.fixture
def double_precision() -> Iterator[None]:
    """Float32 rounding can grow through Adam and batch-norm; in float64 only a real difference shows."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("sketch", [0, 4])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_neither_neighbours_nor_the_gradient_matter_in_double_precision(
    likelihood: LikelihoodName, sketch: int
) -> None:
    model = make_model(likelihood)
    settings = _settings(replace(SMALL_PRIOR, sketch=sketch), epochs=10, patience=2, learning_rate=0.02)
    prior = _prior(model, settings)
    tasks = [
        _task(model, make_rows(likelihood, rows, i), make_rows(likelihood, 12, 70 + i), seed=i)
        for i, rows in enumerate((41, 5, 17, 16))
    ]
    for task, fit in zip(tasks, fit_sites(model, settings, prior, tasks), strict=True):
        assert _fitted(fit).theta.dtype == torch.float64
        for gradient in GRADIENTS:
            alone = fit_local(model, settings, prior, task, gradient)
            assert torch.allclose(_fitted(fit).theta, alone.theta, rtol=0, atol=1e-8)
            assert _same(_fitted(fit), alone, atol=1e-6)  # row counts are float32: so is the n/(n−1)


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_a_seed_gives_the_same_bits_and_another_seed_does_not(
    likelihood: LikelihoodName, gradient: GradientSource
) -> None:
    model, settings = make_model(likelihood), _settings()
    prior = _prior(model, settings)
    task = _task(model, make_rows(likelihood, 30, 1), make_rows(likelihood, 10, 2))
    kept = task.theta.clone()
    one, again = (fit_local(model, settings, prior, task, gradient) for _ in range(2))
    assert _same(one, again)
    assert (one.log_omega, one.validation_loss) == (again.log_omega, again.validation_loss)
    assert not torch.equal(
        one.theta, fit_local(model, settings, prior, replace(task, seed=1), gradient).theta
    )
    assert torch.equal(task.theta, kept), "the start is not trained in place"


def _validation_loss(model: Model, fit: LocalFit, rows: Examples) -> float:
    outputs = model.network.predict_one(fit.theta, fit.buffers, rows.features).double()[None]
    outcome = Outcome(torch.ones(1, len(rows)), label=rows.target[None])
    return float(negative_log_likelihood(model.likelihood, outputs, outcome)) / len(rows)


def _stopping(losses: list[float], patience: int) -> tuple[int, int]:
    """Best epoch and last epoch, counted from one."""
    best = 1
    for epoch, loss in enumerate(losses, start=1):
        if loss < losses[best - 1]:
            best = epoch
        if epoch - best >= patience:
            return best, epoch
    return best, len(losses)


def test_early_stopping_counts_patience_and_restores_a_copy_of_the_best() -> None:
    """The oracle: fits of 1, 2, 3 … epochs without validation rows give every epoch's weights."""
    model = make_model("bernoulli")
    settings = _settings(epochs=14, learning_rate=0.05)
    prior = _prior(model, settings)
    for case in range(40):
        validation = make_rows("bernoulli", 16, 50 + case)
        unjudged = _task(model, make_rows("bernoulli", 20, case), make_rows("bernoulli", 0, 0))
        epochs = [
            fit_local(model, _settings(epochs=e, learning_rate=0.05), prior, unjudged) for e in range(1, 15)
        ]
        losses = [_validation_loss(model, fit, validation) for fit in epochs]
        hasty, patient = _stopping(losses, 1), _stopping(losses, 3)
        if hasty[0] < patient[0] < patient[1] < 14:
            break
    else:
        pytest.fail("in no case did patience find a better epoch and then stop early")

    for patience in (1, 2, 3, 4):
        best, stop = _stopping(losses, patience)
        stopped = replace(settings, training=replace(settings.training, patience=patience))
        fit = fit_local(model, stopped, prior, replace(unjudged, validation=validation))
        assert (fit.best_epoch, fit.epochs) == (best, stop)
        assert torch.equal(fit.theta, epochs[best - 1].theta)
        assert torch.equal(fit.buffers.mean, epochs[best - 1].buffers.mean)
        assert torch.equal(fit.buffers.variance, epochs[best - 1].buffers.variance)
        assert fit.validation_loss == losses[best - 1] == _validation_loss(model, fit, validation)
        if stop < 14:
            assert losses[stop - 1] > losses[best - 1]
            assert not torch.equal(fit.theta, epochs[stop - 1].theta)


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a site that can judge"])
@pytest.mark.parametrize("case", ["bernoulli", "categorical", "cox without rows", "cox without events"])
def test_a_validation_part_that_cannot_judge_keeps_the_last_epoch(case: str, beside: bool) -> None:
    likelihood: LikelihoodName = "bernoulli" if case == "bernoulli" else "cox"
    likelihood = "categorical" if case == "categorical" else likelihood
    validation = make_rows(likelihood, 6 if case == "cox without events" else 0, 2)
    if validation.event is not None:
        validation = replace(validation, event=torch.zeros_like(validation.event))
    model, settings = make_model(likelihood), _settings(epochs=7, patience=2, learning_rate=0.05)
    prior = _prior(model, settings)
    task = _task(model, make_rows(likelihood, 21, 1), validation)
    other = replace(task, validation=make_rows(likelihood, 9, 3), seed=9)
    fit = _fitted(fit_sites(model, settings, prior, [task, other] if beside else [task])[0])
    assert (fit.epochs, fit.best_epoch) == (7, 7)
    assert not torch.equal(fit.theta, task.theta)
    assert fit.validation_loss is None


def _spoiled(rows: Examples, value: float) -> Examples:
    features = rows.features.clone()
    features[0, 0] = value
    return replace(rows, features=features)


@pytest.mark.parametrize(
    ("value", "judged"), [(math.inf, True), (math.nan, False)], ids=["inf, judged", "nan, not judged"]
)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_a_diverging_site_fails_and_its_neighbours_do_not_notice(
    likelihood: LikelihoodName, value: float, judged: bool
) -> None:
    model, settings = make_model(likelihood), _settings(patience=2)
    prior = _prior(model, settings)
    sizes = (17, 30, 5)
    healthy = [
        _task(model, make_rows(likelihood, n, n), make_rows(likelihood, 9 if judged else 0, 1), seed=n)
        for n in sizes
    ]
    sick = replace(healthy[1], train=_spoiled(healthy[1].train, value))
    with pytest.raises(TrainingError, match="diverged"):
        fit_local(model, settings, prior, sick)
    before = fit_sites(model, settings, prior, healthy)
    after = fit_sites(model, settings, prior, [healthy[0], sick, healthy[2]])
    assert isinstance(after[1], FailedFit)
    for site in (0, 2):
        assert _same(_fitted(before[site]), _fitted(after[site]), atol=1e-6)


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_a_huge_learning_rate_is_an_error_and_never_the_start_unchanged(
    likelihood: LikelihoodName, gradient: GradientSource
) -> None:
    model, settings = make_model(likelihood), _settings(learning_rate=1e30)
    task = _task(model, make_rows(likelihood, 30, 1), make_rows(likelihood, 10, 2))
    with pytest.raises(TrainingError, match="diverged") as caught:
        fit_local(model, settings, _prior(model, settings), task, gradient)
    assert "learning rate" in caught.value.hint


@pytest.mark.parametrize("rows", [0, 1])
def test_too_few_training_rows_are_refused(rows: int) -> None:
    model, settings = make_model("bernoulli"), _settings()
    task = _task(model, make_rows("bernoulli", rows, 1), make_rows("bernoulli", 5, 2))
    with pytest.raises(TrainingError, match="fewer than 2 training rows"):
        fit_local(model, settings, _prior(model, settings), task)


def test_no_tasks_give_no_fits() -> None:
    model, settings = make_model("bernoulli"), _settings()
    assert fit_sites(model, settings, _prior(model, settings), []) == []


def test_plain_training_leaves_the_prior_out() -> None:
    model, settings = make_model("bernoulli"), _settings()
    task = _task(model, make_rows("bernoulli", 30, 1), make_rows("bernoulli", 10, 2))
    near, far = _prior(model, settings), _prior(model, settings)
    far = replace(far, mu=far.mu + 5, psi=ConvexNetwork(model.network.spec, SMALL_PRIOR).initialise() * 3)
    one, other = (fit_sites(model, settings, p, [task], penalised=False)[0] for p in (near, far))
    assert _same(_fitted(one), _fitted(other))
    assert _fitted(one).penalty == 0.0
    with_prior = fit_sites(model, settings, near, [task])[0]
    assert not torch.equal(_fitted(one).theta, _fitted(with_prior).theta)


def test_the_results_share_no_memory() -> None:
    model, settings = make_model("bernoulli"), _settings()
    tasks = [_task(model, make_rows("bernoulli", 9, s), make_rows("bernoulli", 4, s), s) for s in (1, 2)]
    one, other = fit_sites(model, settings, _prior(model, settings), tasks)
    kept = _fitted(other).theta.clone()
    _fitted(one).theta.fill_(9.0)
    buffers: Buffers = _fitted(one).buffers
    buffers.mean.fill_(9.0)
    assert torch.equal(_fitted(other).theta, kept)
    assert not bool((_fitted(other).buffers.mean == 9.0).any())
