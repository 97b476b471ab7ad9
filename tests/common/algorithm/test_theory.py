"""The theory FedMAP rests on, held against SciPy's optimisers in float64.

L is convex (a linear model under the logistic or the Cox likelihood), R is strongly convex in (θ, μ) for a
fixed ψ, and M(μ) = Σ_k min_θ {L(θ; Z_k) + N_k R(θ; μ, ψ)}. Networks that are not convex have no such
theory and are not looked at here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import optimize
from torch import Tensor

from fedmap.algorithm.examples import Examples
from fedmap.algorithm.fit.fitting import fit_local
from fedmap.algorithm.fit.values import GradientSource, LocalFit, Model, SiteTask
from fedmap.algorithm.model.layers import Linear, Pass
from fedmap.algorithm.model.likelihood import (
    LikelihoodName,
    Outcome,
    negative_log_likelihood,
    output_gradient,
    risk_sets,
)
from fedmap.algorithm.model.network import Network
from fedmap.algorithm.prior.aggregation import SiteParameters, aggregate
from fedmap.algorithm.prior.convex_network import ConvexNetwork
from fedmap.algorithm.prior.penalty import anchored_penalty
from fedmap.algorithm.prior.values import Prior
from fedmap.algorithm.settings import FedmapSettings, PriorSettings, TrainingSettings

Floats = npt.NDArray[np.float64]

FEATURES = 3
NETWORK = Network(FEATURES, 1, (), (Linear(FEATURES, 1),))
D = NETWORK.spec.size
LEARNED = PriorSettings(alpha=0.5, epsilon=0.1, hidden=(8, 4), seed=3)
MOREAU = PriorSettings(alpha=1.0, epsilon=0.0, convex=False)  # R = ‖θ − γ‖², no shrinkage at all
CONVEX_LIKELIHOODS: tuple[LikelihoodName, ...] = ("bernoulli", "cox")


@dataclass(frozen=True)
class Site:
    """One site's rows; survival rows come sorted by falling time."""

    features: Floats  # exact in float32 too, so that the float32 fit sees the same numbers
    target: Floats  # class or follow-up time
    event: npt.NDArray[np.bool_]

    @property
    def rows(self) -> int:
        return len(self.features)


def make_sites(likelihood: LikelihoodName) -> tuple[Site, ...]:
    """Three sites of unequal size whose best models differ; survival times are tied."""
    rng = np.random.default_rng(0)
    return tuple(_site(likelihood, rows, rng) for rows in (15, 30, 22))


def _site(likelihood: LikelihoodName, rows: int, rng: np.random.Generator) -> Site:
    features = rng.normal(size=(rows, FEATURES)).astype(np.float32).astype(np.float64)
    score = features @ rng.normal(0.0, 1.5, FEATURES) + rng.normal()
    event = rng.random(rows) < 0.7
    if likelihood == "bernoulli":
        return Site(features, (rng.random(rows) < 1 / (1 + np.exp(-score))).astype(np.float64), event)
    time = np.ceil(4 * rng.exponential(np.exp(-score / 2)))  # whole numbers: many ties
    order = np.argsort(-time, kind="stable")
    return Site(features[order], time[order], event[order])


def psi_of(settings: PriorSettings) -> Tensor:
    """ψ as after many steps: no bias at nought, f not small, signs that only the projection sets right."""
    if not settings.convex:
        return torch.zeros(0, dtype=torch.float64)
    network = ConvexNetwork(NETWORK.spec, settings)
    psi = network.initialise().double() * 1.5
    moved = psi + torch.from_numpy(np.random.default_rng(9).normal(0, 0.3, len(psi)))
    return network.project(moved)


def penalty(settings: PriorSettings, theta: Tensor, mu: Tensor, psi: Tensor) -> Tensor:
    """R(θ; μ, ψ) as the package computes it, (S, d) → (S,), differentiable in all three."""
    return anchored_penalty(NETWORK.spec, settings, mu, psi).value(theta)


@dataclass(frozen=True)
class Federation:
    """The bi-level problem over some sites, in float64, solved by SciPy."""

    likelihood: LikelihoodName
    settings: PriorSettings
    sites: tuple[Site, ...]
    psi: Tensor
    features: Tensor  # (S, B, p), padded
    outcome: Outcome

    @property
    def counts(self) -> Tensor:
        """N_k, (S,)."""
        return torch.tensor([float(site.rows) for site in self.sites], dtype=torch.float64)

    @property
    def rows(self) -> int:
        return sum(site.rows for site in self.sites)

    def losses(self, theta: Tensor) -> Tensor:
        """L(θ_k; Z_k) of each site, (S, d) → (S,)."""
        return negative_log_likelihood(self.likelihood, self._outputs(theta), self.outcome)

    def _outputs(self, theta: Tensor) -> Tensor:
        at = Pass(training=False, buffers=NETWORK.initial_buffers())
        return NETWORK.forward(NETWORK.spec.views(theta), self.features, at)[0]

    def objective(self, theta: Tensor, mu: Tensor, psi: Tensor) -> Tensor:
        """Σ_k L(θ_k; Z_k) + N_k R(θ_k; μ, ψ)."""
        return (self.losses(theta) + self.counts * penalty(self.settings, theta, mu, psi)).sum()

    def local(self, mu: Tensor, psi: Tensor | None = None) -> Tensor:
        """θ_k*(γ) of every site, (S, d): the root of (1/N_k) ∇L + ∇R, which is the only minimiser."""
        prior = anchored_penalty(NETWORK.spec, self.settings, mu, self.psi if psi is None else psi)
        shape = (len(self.sites), D)

        def slope(flat: Floats) -> Floats:
            theta = torch.from_numpy(flat.reshape(shape))
            by_output = output_gradient(self.likelihood, self._outputs(theta), self.outcome)
            by_weight = (by_output * self.features).sum(1)  # the model is linear: (S, p), then the bias
            by_theta = torch.cat([by_weight, by_output.sum(1)], dim=1) / self.counts[:, None]
            return np.asarray((by_theta + prior.gradient(theta)).numpy().ravel())

        found = optimize.root(slope, np.tile(mu.numpy(), shape[0]), options={"xtol": 1e-13})
        assert np.abs(slope(np.asarray(found.x))).max() < 1e-10
        return torch.from_numpy(np.asarray(found.x).reshape(shape))

    def envelope(self, mu: Tensor, psi: Tensor | None = None) -> float:
        """M(γ)."""
        return float(self.objective(self.local(mu, psi), mu, self.psi if psi is None else psi))

    def danskin(self, mu: Tensor) -> tuple[Floats, Floats]:
        """Σ N_k ∇_γ R(θ_k*(γ); γ), with θ_k* held fixed: for μ and for ψ."""
        leaves = (mu.clone().requires_grad_(), self.psi.clone().requires_grad_())
        total = (self.counts * penalty(self.settings, self.local(mu), *leaves)).sum()
        by_mu, by_psi = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
        return np.asarray(by_mu.numpy()), np.asarray(by_psi.numpy())

    def joint(self, x: Tensor) -> Tensor:
        """The whole objective of one vector (θ_1 … θ_q, μ), per row."""
        return self.objective(x[:-D].view(-1, D), x[-D:], self.psi) / self.rows


def federation(likelihood: LikelihoodName, settings: PriorSettings = LEARNED) -> Federation:
    sites = make_sites(likelihood)
    shape = (len(sites), max(site.rows for site in sites))
    features = np.zeros((*shape, FEATURES))
    target, event, weight = np.zeros(shape), np.zeros(shape, dtype=bool), np.zeros(shape)
    for k, site in enumerate(sites):
        features[k, : site.rows] = site.features
        target[k, : site.rows] = site.target
        event[k, : site.rows] = site.event
        weight[k, : site.rows] = 1.0
    if likelihood == "cox":
        risk = risk_sets(target, event, np.array([site.rows for site in sites]))
        outcome = Outcome(torch.from_numpy(weight), risk=risk)
    else:
        outcome = Outcome(torch.from_numpy(weight), label=torch.from_numpy(target.astype(np.int64)))
    return Federation(likelihood, settings, sites, psi_of(settings), torch.from_numpy(features), outcome)


def some_mu(seed: int = 11) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=D))


def norm(x: Floats) -> float:
    return float(np.linalg.norm(x))


def gradient_of(objective: Callable[[Tensor], Tensor], x: Floats) -> Floats:
    point = torch.from_numpy(x.copy()).requires_grad_()
    return np.asarray(torch.autograd.grad(objective(point), point)[0].numpy())


def hessian_of(objective: Callable[[Tensor], Tensor], x: Floats) -> Floats:
    point = torch.from_numpy(x.copy()).requires_grad_()
    slope = torch.autograd.grad(objective(point), point, create_graph=True)[0]
    rows = [torch.autograd.grad(part, point, retain_graph=True)[0] for part in slope.unbind()]
    return np.asarray(torch.stack(rows).numpy())


def minimise(
    objective: Callable[[Tensor], Tensor], start: Floats, method: Literal["trust-exact", "L-BFGS-B"]
) -> Floats:
    """SciPy's minimiser: by an exact trust-region Newton method, or by one that knows no Hessian."""

    def value(x: Floats) -> float:
        return float(objective(torch.from_numpy(x)))

    def slope(x: Floats) -> Floats:
        return gradient_of(objective, x)

    def curvature(x: Floats) -> Floats:
        return hessian_of(objective, x)

    found = optimize.minimize(
        value,
        start,
        jac=slope,
        hess=curvature if method == "trust-exact" else None,
        method=method,
        tol=1e-16,
        options={"gtol": 1e-9, "maxiter": 5000},
    )
    return np.asarray(found.x, dtype=np.float64)


def derivative(function: Callable[[Tensor], float], at: Tensor, along: Tensor) -> float:
    """Along a direction, by the five-point rule: its error is far below 1e-6."""
    step = 5e-3 * along
    far = function(at - 2 * step) - function(at + 2 * step)
    near = function(at + step) - function(at - step)
    return (far + 8 * near) / (12 * 5e-3)


def softplus(x: Floats) -> Floats:
    return np.asarray(np.logaddexp(0.0, x))


@pytest.mark.parametrize("hidden", [(8, 4), (3, 5)])
def test_the_penalty_is_the_papers_formula_written_out_in_numpy(hidden: tuple[int, int]) -> None:
    settings = PriorSettings(alpha=0.5, epsilon=0.1, hidden=hidden, seed=3)
    psi, mu, theta = psi_of(settings), some_mu(1), some_mu(2)
    named = {k: v.numpy() for k, v in ConvexNetwork(NETWORK.spec, settings).spec.to_mapping(psi).items()}
    convex = 0.0
    parts = zip(NETWORK.spec.names, NETWORK.spec.views(theta), NETWORK.spec.views(mu), strict=True)
    for t, (name, theta_part, mu_part) in enumerate(parts):
        first = (
            named[f"theta_weight.{name}"] @ theta_part.numpy().ravel()
            + named[f"mu_weight.{name}"] @ mu_part.numpy().ravel()
            + named["first_bias"][t]
        )
        second = named["second_weight"][t] @ softplus(first) + named["second_bias"][t]
        convex += float(named["output"][t] @ softplus(second))
    away = float((theta - mu).square().sum())
    shrunk = float(theta.square().sum() + mu.square().sum())
    assert convex > 0
    expected = convex + 0.5 * away + 0.1 * shrunk
    assert float(penalty(settings, theta[None], mu, psi)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("likelihood", CONVEX_LIKELIHOODS)
def test_the_gradient_of_the_envelope_in_mu_is_danskins(likelihood: LikelihoodName) -> None:
    problem, mu = federation(likelihood), some_mu()
    by_mu, _ = problem.danskin(mu)
    numeric = [derivative(problem.envelope, mu, axis) for axis in torch.eye(D, dtype=torch.float64)]
    assert norm(by_mu) > 1  # a gradient of zero would prove nothing
    np.testing.assert_allclose(numeric, by_mu, rtol=0, atol=1e-6 * norm(by_mu))


@pytest.mark.parametrize("likelihood", CONVEX_LIKELIHOODS)
def test_the_gradient_of_the_envelope_in_psi_is_danskins(likelihood: LikelihoodName) -> None:
    """f is smooth in ψ (softplus throughout), so Danskin needs only the one inner minimiser."""
    problem, mu = federation(likelihood), some_mu()
    _, by_psi = problem.danskin(mu)
    rng = np.random.default_rng(8)
    for _ in range(4):
        along = torch.from_numpy(rng.normal(size=len(by_psi)))
        along /= along.norm()
        numeric = derivative(lambda psi: problem.envelope(mu, psi), problem.psi, along)
        assert numeric == pytest.approx(float(along.numpy() @ by_psi), abs=1e-6 * norm(by_psi))


@pytest.mark.parametrize("likelihood", CONVEX_LIKELIHOODS)
def test_the_envelope_is_strongly_convex_on_random_segments(likelihood: LikelihoodName) -> None:
    """The paper's lemma with its modulus: α_M = ε Σ N_k, as R has the modulus ε in (θ, μ)."""
    problem = federation(likelihood)
    modulus = LEARNED.epsilon * problem.rows
    rng = np.random.default_rng(21)
    for scale in (0.05, 1.0, 4.0):
        for share in (0.5, 0.2):
            one, two = torch.from_numpy(rng.normal(0, scale, (2, D)))
            inside = problem.envelope((1 - share) * one + share * two)
            chord = (1 - share) * problem.envelope(one) + share * problem.envelope(two)
            gap = modulus * share * (1 - share) * float((one - two).square().sum())
            assert chord - inside >= gap - 1e-9 * abs(chord)


@pytest.mark.parametrize("likelihood", CONVEX_LIKELIHOODS)
def test_gradient_descent_on_mu_reaches_the_only_minimiser_of_the_joint_problem(
    likelihood: LikelihoodName,
) -> None:
    problem = federation(likelihood)
    best = minimise_jointly(problem)
    best_thetas, best_mu = best[:-D].reshape(-1, D), best[-D:]
    # ∇²M is never above ∇²_μ Σ N_k R; any step below 2 / ∇²M will do, which leaves room for f to vary.
    curvature = hessian_of(
        lambda mu: (problem.counts * penalty(LEARNED, torch.from_numpy(best_thetas), mu, problem.psi)).sum(),
        best_mu,
    )
    step = 1 / np.linalg.eigvalsh(curvature)[-1]
    for start in (np.zeros(D), 5 * some_mu(4).numpy()):
        mu = start
        for _ in range(200):
            by_mu, _ = problem.danskin(torch.from_numpy(mu))
            mu = mu - step * by_mu
            if norm(by_mu) < 1e-7 * problem.rows:
                break
        np.testing.assert_allclose(mu, best_mu, rtol=0, atol=1e-6)
        np.testing.assert_allclose(problem.local(torch.from_numpy(mu)), best_thetas, rtol=0, atol=1e-6)


def minimise_jointly(problem: Federation) -> Floats:
    """(θ_1 … θ_q, μ) by two methods from two starts: they must agree."""
    size = D * (len(problem.sites) + 1)
    newton = minimise(problem.joint, np.zeros(size), "trust-exact")
    quasi = minimise(problem.joint, np.random.default_rng(2).normal(size=size), "L-BFGS-B")
    np.testing.assert_allclose(quasi, newton, rtol=0, atol=1e-6)
    return newton


@pytest.mark.parametrize("likelihood", CONVEX_LIKELIHOODS)
def test_with_a_quadratic_penalty_the_envelope_is_moreaus(likelihood: LikelihoodName) -> None:
    problem, gamma = federation(likelihood, MOREAU), some_mu()
    prox = proximal_points(problem, gamma.numpy())
    np.testing.assert_allclose(problem.local(gamma), prox, rtol=0, atol=1e-6)
    counts = problem.counts.numpy()
    away = ((prox - gamma.numpy()) ** 2).sum(1)
    value = float(problem.losses(torch.from_numpy(prox)).sum()) + float(counts @ away)
    assert problem.envelope(gamma) == pytest.approx(value, rel=1e-9)
    expected = 2 * counts @ (gamma.numpy() - prox)  # Σ 2 N_k (γ − prox_k(γ))
    scale = norm(expected)
    np.testing.assert_allclose(problem.danskin(gamma)[0], expected, rtol=0, atol=1e-6 * scale)
    numeric = [derivative(problem.envelope, gamma, axis) for axis in torch.eye(D, dtype=torch.float64)]
    np.testing.assert_allclose(numeric, expected, rtol=0, atol=1e-6 * scale)


def proximal_points(problem: Federation, gamma: Floats) -> Floats:
    """argmin L(θ; Z_k) + N_k ‖θ − γ‖² for each site, with no use of the package's penalty or gradients."""
    anchor = torch.from_numpy(gamma)

    def objective(x: Tensor) -> Tensor:
        theta = x.view(-1, D)
        return (problem.losses(theta) / problem.counts + (theta - anchor).square().sum(1)).sum()

    return minimise(objective, np.tile(gamma, len(problem.sites)), "trust-exact").reshape(-1, D)


def test_averaging_by_sample_count_is_a_gradient_step_on_the_moreau_envelope() -> None:
    """μ' = Σ N_k θ_k / N is the paper's update of γ with step λ = 1 / (2αN), when R = α‖θ − μ‖²."""
    problem, mu = federation("bernoulli", MOREAU), some_mu()
    thetas = dict(zip(("a", "b", "c"), problem.local(mu), strict=True))
    weights = dict(zip(("a", "b", "c"), (problem.counts / problem.rows).tolist(), strict=True))
    buffers = NETWORK.initial_buffers()
    averaged, _ = aggregate(NETWORK.spec, weights, lambda site: SiteParameters(thetas[site], buffers))
    by_mu, _ = problem.danskin(mu)
    stepped = mu.numpy() - by_mu / (2 * MOREAU.alpha * problem.rows)
    np.testing.assert_allclose(averaged.double().numpy(), stepped, rtol=1e-6, atol=1e-6)


def fit(problem: Federation, k: int, mu: Tensor, epochs: int, gradient: GradientSource) -> LocalFit:
    """`fit_local` on all rows at once and without a validation part: nothing stops it early."""
    training = TrainingSettings(epochs=epochs, batch_size=128, learning_rate=0.05, patience=epochs)
    site = problem.sites[k]
    survival = problem.likelihood == "cox"
    target = torch.from_numpy(site.target) if survival else torch.from_numpy(site.target).long()
    event = torch.from_numpy(site.event) if survival else None
    features = torch.from_numpy(site.features).float()
    none = None if event is None else event[:0]
    task = SiteTask(
        theta=mu.float(),
        buffers=NETWORK.initial_buffers(),
        train=Examples(features, target, event),
        validation=Examples(features[:0], target[:0], none),
        seed=1,
    )
    prior = Prior(mu.float(), NETWORK.initial_buffers(), problem.psi.float())
    settings = FedmapSettings(prior=problem.settings, training=training)
    return fit_local(Model(NETWORK, problem.likelihood), settings, prior, task, gradient)


@pytest.mark.parametrize("gradient", ["autograd", "closed_form"])
@pytest.mark.parametrize("likelihood", CONVEX_LIKELIHOODS)
def test_a_local_fit_descends_to_the_map_optimum(
    likelihood: LikelihoodName, gradient: GradientSource
) -> None:
    problem, mu, k = federation(likelihood), some_mu().float().double(), 1

    def objective(theta: Tensor) -> float:
        everywhere = theta.expand(len(problem.sites), D)
        loss = problem.losses(everywhere)[k] / problem.counts[k]
        return float(loss + penalty(LEARNED, everywhere, mu, problem.psi)[k])

    best = problem.local(mu)[k]
    reached = [objective(mu)]
    for epochs in (3, 10, 40, 300):
        found = fit(problem, k, mu, epochs, gradient)
        reached.append(objective(found.theta.double()))
        assert found.epochs == epochs
        assert found.loss / found.rows + found.penalty == pytest.approx(reached[-1], rel=1e-5)
    assert reached == sorted(reached, reverse=True)
    assert reached[0] - objective(best) > 0.1  # there was some way to go
    assert -1e-6 <= reached[-1] - objective(best) < 1e-4
    np.testing.assert_allclose(found.theta.numpy(), best.numpy(), rtol=0, atol=1e-2)
