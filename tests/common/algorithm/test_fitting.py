"""A site's half of a round: the objective by hand, two gradients, many sites at once, stopping, failure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import Tensor

from fedmap.algorithm.examples import Examples
from fedmap.algorithm.fit.fitting import fit_local, fit_sites
from fedmap.algorithm.fit.values import FailedFit, GradientSource, LocalFit, Model, SiteTask
from fedmap.algorithm.model.layers import BatchNorm, Buffers, Linear, Relu
from fedmap.algorithm.model.likelihood import LikelihoodName, Outcome, negative_log_likelihood
from fedmap.algorithm.model.network import Network
from fedmap.algorithm.prior.convex_network import ConvexNetwork
from fedmap.algorithm.prior.penalty import anchored_penalty
from fedmap.algorithm.prior.values import Prior, initial_prior
from fedmap.algorithm.prior.weights import log_weight
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


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("convex", [True, False])
@pytest.mark.parametrize("rule", get_args(WeightingRule))
def test_a_fit_is_what_torchs_own_modules_and_optimiser_give(
    gradient: GradientSource, convex: bool, rule: WeightingRule
) -> None:
    """θ, the running statistics and what is told after 20 full batches, against torch.nn and torch.optim."""
    network = Network(4, 1, (), (Linear(4, 5), Relu(), BatchNorm(5), Linear(5, 1)))
    model, rows = Model(network, "bernoulli"), make_rows("bernoulli", 40, 0)
    settings = _settings(
        replace(SMALL_PRIOR, alpha=0.1, convex=convex),
        epochs=20,
        batch_size=64,
        learning_rate=0.01,
        weight_decay=0.01,
    )
    settings = replace(settings, aggregation=AggregationSettings(weighting=rule))
    prior, task = _prior(model, settings), _task(model, rows, make_rows("bernoulli", 0, 0))
    fit = fit_local(model, settings, prior, task, gradient)

    norm = torch.nn.BatchNorm1d(5)
    modules = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), norm, torch.nn.Linear(5, 1))
    torch.nn.utils.vector_to_parameters(task.theta.clone(), modules.parameters())
    optimiser = torch.optim.Adam(modules.parameters(), lr=0.01, weight_decay=0.01)
    penalty = anchored_penalty(network.spec, settings.prior, prior.mu, prior.psi)

    def parts() -> tuple[Tensor, Tensor]:
        """L and R."""
        logit, theta = modules(rows.features)[:, 0], torch.nn.utils.parameters_to_vector(modules.parameters())
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            logit, rows.target.float(), reduction="sum"
        )
        return loss, penalty.value(theta[None])[0]

    for _ in range(20):
        likelihood, penalised = parts()
        optimiser.zero_grad()
        (likelihood / 40 + penalised).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    modules.eval()
    loss, r = (float(part.detach()) for part in parts())
    expected = torch.nn.utils.parameters_to_vector(modules.parameters()).detach()
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert torch.allclose(fit.theta, expected, atol=1e-5)
    assert torch.allclose(fit.buffers.mean, norm.running_mean, atol=1e-5)
    assert torch.allclose(fit.buffers.variance, norm.running_var, atol=1e-5)
    assert (fit.buffers.count.tolist(), fit.rows) == ([20], 40)
    assert (fit.loss, fit.penalty) == pytest.approx((loss, r), rel=1e-4)
    assert fit.log_omega == pytest.approx(log_weight(rule, loss, r, 40), rel=1e-4)


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
        for i, rows in enumerate((41, 5, 17, 16, 2))  # remainder 1, smaller than a batch, 1, 0, two rows
    ]
    fits = fit_sites(model, settings, prior, tasks)
    assert len({_fitted(fit).epochs for fit in fits}) > 1, "no site stopped before another"
    for task, fit in zip(tasks, fits, strict=True):
        assert _fitted(fit).theta.dtype == torch.float64
        assert _fitted(fit).rows == len(task.train)
        for gradient in GRADIENTS:
            alone = fit_local(model, settings, prior, task, gradient)
            assert torch.allclose(_fitted(fit).theta, alone.theta, rtol=0, atol=1e-8)
            assert _fitted(fit).log_omega == pytest.approx(alone.log_omega, abs=1e-6)
            assert _fitted(fit).validation_loss == pytest.approx(alone.validation_loss, abs=1e-6)
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
