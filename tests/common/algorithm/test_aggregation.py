"""The centre's half of a round: μ', pooled buffers and ψ-steps by hand; order, memory and bad updates."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedmap.algorithm.model.layers import Buffers
from fedmap.algorithm.model.parameters import ParameterSpec
from fedmap.algorithm.prior.aggregation import BLOCK, Load, PriorStep, SiteParameters, aggregate, next_prior
from fedmap.algorithm.prior.convex_network import ConvexNetwork
from fedmap.algorithm.prior.values import Prior
from fedmap.algorithm.settings import AggregationSettings, PriorSettings
from fedmap.errors import ModelError, TrainingError

SPEC = ParameterSpec(("w", "b"), ((1,), (1,)))
PRIOR = PriorSettings(hidden=(2, 2), alpha=0.2, epsilon=0.01)
FRESH = Buffers(torch.zeros(1), torch.ones(1), torch.zeros(1, dtype=torch.int64))  # one batch-norm channel
SITES = {"north": [1.0, -2.0], "south": [3.0, 2.0]}
LOG_OMEGA = {"north": 0.0, "south": math.log(3.0)}  # shares 1/4 and 3/4


def _update(*theta: float, buffers: Buffers = FRESH) -> SiteParameters:
    return SiteParameters(torch.tensor(theta), buffers)


def _buffers(mean: float, variance: float, count: int) -> Buffers:
    return Buffers(torch.tensor([mean]), torch.tensor([variance]), torch.tensor([count]))


def _start(settings: PriorSettings = PRIOR, spec: ParameterSpec = SPEC) -> Prior:
    psi = ConvexNetwork(spec, settings).initialise() if settings.convex else torch.zeros(0)
    return Prior(torch.zeros(spec.size), FRESH, psi)


def _next(
    aggregation: AggregationSettings,
    log_omega: Mapping[str, float] = LOG_OMEGA,
    settings: PriorSettings = PRIOR,
    load: Load = lambda site: _update(*SITES[site]),
) -> PriorStep:
    return next_prior(SPEC, settings, aggregation, _start(settings), log_omega, load)


def test_pooled_variance_is_never_negative() -> None:
    """A channel without spread at a large mean: rounding must not leave a root of a negative number."""
    updates = {name: _update(0.0, 0.0, buffers=_buffers(1e4 + 1 / 3, 0.0, 1)) for name in "abcdefg"}
    _, pooled = aggregate(SPEC, dict.fromkeys("abcdefg", 1 / 7), updates.__getitem__)
    assert bool((pooled.variance >= 0).all())


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("rate", [1e-3, 0.3, 5.0])
def test_psi_steps_are_those_of_autograd_each_with_its_projection(steps: int, rate: float) -> None:
    """ψ ← project(ψ − λ Σ ω̄_k ∂f(θ_k, μ')/∂ψ) with the shares ¼ and ¾ and μ' = (2.5, 1)."""
    network, mu = ConvexNetwork(SPEC, PRIOR), torch.tensor([2.5, 1.0])
    theta = torch.tensor(list(SITES.values()))

    def f(psi: Tensor) -> Tensor:
        views = network.psi(psi)
        return network.value(views, network.anchor(views, mu), theta) @ torch.tensor([0.25, 0.75])

    psi = _start().psi
    for _ in range(steps):
        psi.requires_grad_()
        (slope,) = torch.autograd.grad(f(psi), psi)
        psi = network.project((psi - rate * slope).detach())
    step = _next(AggregationSettings(psi_learning_rate=rate, psi_steps=steps))
    assert torch.allclose(step.prior.psi, psi, rtol=1e-4, atol=1e-5)
    assert rate < 0.3 or bool((network.psi(psi).output == 0).any()), "the case must make the projection act"

    convex = float(f(psi))
    quadratic = 0.2 * (0.25 * (1.5**2 + 3.0**2) + 0.75 * (0.5**2 + 1.0**2))
    shrinkage = 0.01 * (0.25 * 5.0 + 0.75 * 13.0 + 7.25)
    assert step.convex_penalty == pytest.approx(convex, rel=1e-4, abs=1e-6)
    assert step.penalty == pytest.approx(convex + quadratic + shrinkage, rel=1e-4, abs=1e-6)


def test_no_psi_steps_and_the_quadratic_prior_leave_psi_alone() -> None:
    assert torch.equal(_next(AggregationSettings(psi_steps=0)).prior.psi, _start().psi)
    quadratic = PriorSettings(convex=False)
    step = _next(AggregationSettings(psi_steps=3), settings=quadratic)
    assert step.prior.psi.numel() == 0
    assert step.convex_penalty == 0.0


def test_the_prior_that_came_in_is_not_touched() -> None:
    prior = _start()
    kept = prior.psi.clone(), prior.mu.clone()
    many = AggregationSettings(psi_steps=4, psi_learning_rate=1.0)
    next_prior(SPEC, PRIOR, many, prior, LOG_OMEGA, lambda site: _update(*SITES[site]))
    assert torch.equal(prior.psi, kept[0])
    assert torch.equal(prior.mu, kept[1])


def _crowd(sites: int, seed: int) -> dict[str, SiteParameters]:
    draw = np.random.default_rng(seed)
    crowd: dict[str, SiteParameters] = {}
    for number in range(sites):
        theta = torch.from_numpy(draw.normal(size=2)).float()
        crowd[f"site-{number}"] = SiteParameters(
            theta, _buffers(float(draw.normal()), float(draw.random()), int(draw.integers(99)))
        )
    return crowd


@given(st.integers(1, 2 * BLOCK + 3), st.integers(0, 999), st.randoms(use_true_random=False))
def test_the_order_in_which_sites_answer_changes_no_bit(sites: int, seed: int, shuffler: Random) -> None:
    crowd = _crowd(sites, seed)
    log_omega = {site: float(update.theta[0]) for site, update in crowd.items()}
    answered = list(log_omega.items())
    shuffler.shuffle(answered)
    settings = AggregationSettings(psi_learning_rate=0.05)
    one = _next(settings, log_omega, load=crowd.__getitem__)
    other = _next(settings, dict(answered), load=crowd.__getitem__)
    assert (one.weights, one.penalty, one.convex_penalty) == (
        other.weights,
        other.penalty,
        other.convex_penalty,
    )
    a, b = one.prior, other.prior
    for x, y in zip(
        (a.mu, a.psi, *vars(a.buffers).values()), (b.mu, b.psi, *vars(b.buffers).values()), strict=True
    ):
        assert torch.equal(x, y)


@given(st.integers(1, 2 * BLOCK + 3), st.integers(0, 999))
def test_mu_and_the_buffers_of_many_sites_are_numpys(sites: int, seed: int) -> None:
    crowd = _crowd(sites, seed)
    shares = np.random.default_rng(seed).dirichlet(np.ones(sites))
    mu, pooled = aggregate(SPEC, dict(zip(crowd, shares.tolist(), strict=True)), crowd.__getitem__)
    theta = np.stack([update.theta.numpy() for update in crowd.values()]).astype(np.float64)
    mean = np.array([float(update.buffers.mean) for update in crowd.values()])
    variance = np.array([float(update.buffers.variance) for update in crowd.values()])
    centre = shares @ mean
    assert (pooled.mean.dtype, pooled.count.dtype) == (torch.float32, torch.int64)
    assert mu.numpy() == pytest.approx(shares @ theta, rel=1e-6, abs=1e-6)
    assert float(pooled.mean) == pytest.approx(centre, rel=1e-6, abs=1e-6)
    assert float(pooled.variance) == pytest.approx(
        shares @ variance + shares @ (mean - centre) ** 2, rel=1e-5
    )
    assert int(pooled.count) == max(int(update.buffers.count) for update in crowd.values())


def test_sites_are_fetched_in_sorted_order_and_never_more_than_a_block_is_held() -> None:
    names = [f"site-{i:03d}" for i in range(3 * BLOCK + 5)]
    alive: list[weakref.ref[Tensor]] = []
    fetched: list[str] = []
    most = 0

    def load(site: str) -> SiteParameters:
        nonlocal most
        update = _update(float(len(fetched) % 7), 1.0)
        alive[:] = [ref for ref in alive if ref() is not None]
        alive.append(weakref.ref(update.theta))
        most = max(most, len(alive))
        fetched.append(site)
        return update

    _next(AggregationSettings(psi_steps=2), dict.fromkeys(reversed(names), 0.0), load=load)
    passes = len(fetched) // len(names)
    assert fetched == names * passes
    assert most <= BLOCK
    del load
    assert all(ref() is None for ref in alive)


def test_a_quadratic_prior_needs_each_update_once() -> None:
    fetched: list[str] = []

    def load(site: str) -> SiteParameters:
        fetched.append(site)
        return _update(*SITES[site])

    _next(AggregationSettings(psi_steps=2), settings=PriorSettings(convex=False), load=load)
    assert fetched == ["north", "south"]


@given(st.integers(1, 60), st.floats(-1e4, 1e4), st.floats(0, 10), st.integers(0, 999))
def test_the_quadratic_penalty_is_that_of_its_definition(
    sites: int, centre: float, spread: float, seed: int
) -> None:
    """Sums of squares cancel where sites agree: what is left must be right to a float32 θ's own step."""
    draw = np.random.default_rng(seed)
    theta = (centre + spread * draw.normal(size=(sites, 2))).astype(np.float32)
    shares = draw.dirichlet(np.ones(sites)).clip(1e-9)
    names = [f"site-{number:02d}" for number in range(sites)]
    updates = {
        name: SiteParameters(torch.from_numpy(row), FRESH) for name, row in zip(names, theta, strict=True)
    }
    log_omega = dict(zip(names, np.log(shares).tolist(), strict=True))
    settings = PriorSettings(convex=False, alpha=0.2, epsilon=1e-6)
    step = _next(AggregationSettings(), log_omega, settings, load=updates.__getitem__)
    mu, exact = step.prior.mu.double().numpy(), theta.astype(np.float64)
    weights = np.array([step.weights[name] for name in names])
    distance = weights @ np.square(exact - mu).sum(1)
    norms = weights @ np.square(exact).sum(1) + np.square(mu).sum()
    rounding = (6e-8 * np.abs(exact).max(initial=0.0)) ** 2
    assert step.penalty >= 0
    assert step.penalty == pytest.approx(0.2 * distance + 1e-6 * norms, rel=1e-9, abs=rounding)


def test_a_round_without_updates_has_no_next_prior() -> None:
    with pytest.raises(TrainingError, match="without a single accepted update"):
        _next(AggregationSettings(), {})


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_log_omega_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(TrainingError):
        _next(AggregationSettings(), {"north": 0.0, "south": bad})


@pytest.mark.parametrize(
    "bad",
    [
        *(_update(1.0, value) for value in (math.nan, math.inf)),
        _update(1.0, 2.0, 3.0),
        SiteParameters(torch.tensor([1, 2]), FRESH),
        *(
            _update(1.0, 2.0, buffers=_buffers(mean, variance, 3))
            for mean, variance in ((math.nan, 1.0), (0.0, math.nan), (math.inf, 1.0), (0.0, -1.0))
        ),
        _update(1.0, 2.0, buffers=Buffers(torch.zeros(2), torch.ones(2), FRESH.count)),
    ],
)
@pytest.mark.parametrize("log_omega", [0.0, -1e6])
def test_an_update_that_is_no_model_of_the_study_is_refused_even_with_no_weight(
    bad: SiteParameters, log_omega: float
) -> None:
    """Bad buffers would silently become μ's, and every T3 prediction with them."""
    updates = {"north": _update(1.0, 2.0), "south": bad}
    with pytest.raises(ModelError):
        _next(AggregationSettings(), {"north": 0.0, "south": log_omega}, load=updates.__getitem__)
