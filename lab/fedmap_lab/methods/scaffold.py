"""SCAFFOLD: control variates take the difference between a site's gradient and everybody's out of each
step.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh. SCAFFOLD: Stochastic
Controlled Averaging for Federated Learning. ICML 2020, Algorithm 1 with option II and global step size 1;
sites count equally, as there. Option II's c_i⁺ = c_i − c + (x − y_i)/(Kη) is, for SGD, the mean of the
plain gradients along the local steps; that mean is what is kept here, since Adam's steps do not show it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedmap.algorithm.fit.adam import Adam
from fedmap.algorithm.fit.rule import FitStart, Gradient, LocalRule, LocalSteps
from fedmap.algorithm.fit.values import SiteTask
from fedmap_lab.federation.sites import Site
from fedmap_lab.methods.method import Run
from fedmap_lab.methods.scheme import Absorbed, Answers, Scheme, SchemeMethod, average, equally, mean_of


@dataclass(frozen=True)
class Controlled:
    """Adam on g + (c − c_i). Beside θ: the correction c − c_i, and the mean of g over the steps so far."""

    def begin(self, start: FitStart) -> LocalSteps:
        return _ControlledSteps(start)


class _ControlledSteps:
    def __init__(self, start: FitStart) -> None:
        self._adam = Adam(start.theta, start.learning_rate)
        self._taken = torch.zeros(len(start.theta), 1)

    def step(self, theta: Tensor, beside: Tensor, gradient: Gradient) -> None:
        grad = gradient(theta)
        taken = self._taken[: len(theta)].add_(1)
        mean = beside[:, 1]
        mean.add_((grad - mean) / taken)
        self._adam.step(theta, grad.add_(beside[:, 0]))

    def select(self, keep: Tensor) -> None:
        self._adam.select(keep)
        self._taken = self._taken[keep]


class _ScaffoldScheme(Scheme["Scaffold"]):
    def __init__(self, run: Run, method: Scaffold) -> None:
        super().__init__(run, method)
        self.control = torch.zeros_like(self.shared.theta, dtype=torch.float64)  # c
        self.variates: dict[str, Tensor] = {}  # c_i, zero before a site's first answer

    def task(self, site: Site, seed: int) -> SiteTask:
        correction = (self.control - self.variates.get(site.name, torch.zeros_like(self.control))).float()
        beside = torch.stack([correction, torch.zeros_like(correction)])
        return replace(super().task(site, seed), beside=beside)

    def absorb(self, answers: Answers) -> Absorbed:
        weighed = answers.weighed
        weights = equally(weighed)
        self.shared = average(self.model, weighed, weights)
        changes: dict[str, Tensor] = {}
        for name, fit in weighed.items():
            assert fit.beside is not None
            fresh = fit.beside[1].double()
            changes[name] = fresh - self.variates.get(name, torch.zeros_like(fresh))
            self.variates[name] = fresh
        self.control = self.control + mean_of(changes) * (len(changes) / len(self.federation.tier(1)))
        return Absorbed(weights)


@dataclass(frozen=True)
class Scaffold(SchemeMethod):
    scheme = _ScaffoldScheme

    @property
    def rule(self) -> LocalRule:
        return Controlled()
