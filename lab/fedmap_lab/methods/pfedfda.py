"""pFedFDA: a shared feature extractor under a generative head, class-conditional Gaussians adapted to each
site.

C. Mclaughlin, L. Su. Personalized Federated Learning via Feature Distribution Adaptation. NeurIPS 2024,
Algorithm 1. In a round a site trains the extractor under the fixed classifier that the global Gaussians and
its own class shares give; estimates its own Gaussians on its features; mixes them with the global ones, β
chosen by two-fold cross-validation; and sends extractor and mixture, which the centre averages by sample
count. One β for means and covariance. The first global Gaussians are those of the first model's features,
averaged over the sites.

Classes only: for survival the FedMAP paper reports figures without saying how, so it is refused there. T2:
the extractor fine-tuned under the global Gaussians, then a mixture of its own. T3: the global extractor and
Gaussians.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedmap.algorithm.fit.rule import AddedGradient, LocalRule
from fedmap.algorithm.fit.values import LocalFit, SiteTask
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.seeding import derive_seed
from fedmap.algorithm.settings import FedmapSettings
from fedmap.study.personalisation import fine_tune_settings, fine_tune_task
from fedmap.study.plan.study_plan import StudyPlan
from fedmap_lab.federation.sites import Federation, Site
from fedmap_lab.methods.embedding import Embedding, embedding_of
from fedmap_lab.methods.method import Run, Served, Trained, sort_out
from fedmap_lab.methods.scheme import Absorbed, Answers, Scheme, SchemeMethod

RIDGE = 1e-4
LEAST_ROWS = 3  # of a class, for a mean of its own


@dataclass(frozen=True)
class ClassGaussians:
    means: Tensor  # (C, E)
    covariance: Tensor  # (E, E)

    def mixed(self, other: ClassGaussians, share: float) -> ClassGaussians:
        """`share` of this one and the rest of the other."""
        return ClassGaussians(
            torch.lerp(other.means, self.means, share), torch.lerp(other.covariance, self.covariance, share)
        )

    def discriminants(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        """The linear discriminants: coefficients (C, E) and intercepts (C,) under class shares (C,)."""
        width = self.covariance.shape[0]
        level = float(self.covariance.diagonal().mean())
        ridge = RIDGE * max(level, 1.0) * torch.eye(width, dtype=torch.float64)
        coefficients = torch.linalg.solve(self.covariance + ridge, self.means.T).T
        smoothed = (shares + RIDGE) / (shares + RIDGE).sum()
        return coefficients, smoothed.log() - 0.5 * (self.means * coefficients).sum(1)


def class_shares(labels: Tensor, classes: int) -> Tensor:
    counts = torch.bincount(labels, minlength=classes).double()
    return counts / max(1, len(labels))


def estimate(features: Tensor, labels: Tensor, instead: ClassGaussians) -> ClassGaussians:
    """Maximum likelihood; a class with too few rows keeps the mean of `instead`."""
    means = instead.means.clone()
    for number in range(len(means)):
        own = features[labels == number]
        if len(own) >= LEAST_ROWS:
            means[number] = own.mean(0)
    centred = features - means[labels]
    return ClassGaussians(means, centred.T @ centred / max(1, len(features) - 1))


def average_gaussians(found: Mapping[str, ClassGaussians], weights: Mapping[str, float]) -> ClassGaussians:
    """Weighted by site, in sorted order."""
    names = sorted(found)
    return ClassGaussians(
        torch.stack([weights[name] * found[name].means for name in names]).sum(0),
        torch.stack([weights[name] * found[name].covariance for name in names]).sum(0),
    )


def best_share(
    features: Tensor, labels: Tensor, shared: ClassGaussians, candidates: Sequence[float], seed: int
) -> float:
    """The share of the local Gaussians with the least log loss in two-fold cross-validation."""
    shares = class_shares(labels, len(shared.means))
    folds = _two_folds(labels, seed)
    if any(len(fold) < 2 for fold in folds):
        return 0.0
    local = [estimate(features[fold], labels[fold], shared) for fold in folds]
    losses = []
    for share in candidates:
        loss = 0.0
        for fitted, held_out in zip(local, reversed(folds), strict=True):
            coefficients, intercepts = fitted.mixed(shared, share).discriminants(shares)
            logits = features[held_out] @ coefficients.T + intercepts
            loss += float(torch.nn.functional.cross_entropy(logits, labels[held_out], reduction="sum"))
        losses.append(loss if np.isfinite(loss) else np.inf)
    return candidates[int(np.argmin(losses))]


def _two_folds(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Rows in two halves, each class dealt out in turn."""
    shuffled = torch.from_numpy(np.random.default_rng(seed).permutation(len(labels)))
    by_class = shuffled[torch.argsort(labels[shuffled], stable=True)]
    return by_class[0::2], by_class[1::2]


CANDIDATES = tuple(step / 10 for step in range(11))  # of β


@dataclass(frozen=True)
class FrozenHead(AddedGradient):
    """The last `size` parameters do not move. Nothing beside θ."""

    size: int

    def add(self, theta: Tensor, beside: Tensor, gradient: Tensor) -> None:  # noqa: ARG002
        gradient[:, -self.size :] = 0.0


class _Heads:
    """Turns Gaussians into the model's last layer, and a site's features into Gaussians."""

    def __init__(self, federation: Federation, seed: int) -> None:
        self.embedding: Embedding = embedding_of(federation.model)
        self.size = federation.model.network.spec.size - self.embedding.size
        self.classes = max(2, self.embedding.outputs)
        self._seed = seed

    def shares(self, site: Site) -> Tensor:
        return class_shares(site.data.train.target, self.classes)

    def put(self, theta: Tensor, gaussians: ClassGaussians, shares: Tensor) -> Tensor:
        """θ with the classifier of these Gaussians as its last layer; one logit is the difference of two."""
        coefficients, intercepts = gaussians.discriminants(shares)
        if self.embedding.outputs == 1:
            coefficients = coefficients[1:] - coefficients[:1]
            intercepts = intercepts[1:] - intercepts[:1]
        head = torch.cat([coefficients.flatten(), intercepts]).float()
        return torch.cat([theta[: self.embedding.size], head])

    def estimated(self, site: Site, parameters: SiteParameters, instead: ClassGaussians) -> ClassGaussians:
        train = site.data.train
        return estimate(self.embedding.features(parameters, train.features), train.target, instead)

    def adapted(
        self, site: Site, fit: LocalFit, shared: ClassGaussians
    ) -> tuple[SiteParameters, ClassGaussians]:
        """A site's model and its mixture of local and global Gaussians."""
        train = site.data.train
        features = self.embedding.features(SiteParameters(fit.theta, fit.buffers), train.features)
        seed = derive_seed(self._seed, "folds", site.name)
        share = best_share(features, train.target, shared, CANDIDATES, seed)
        mixture = estimate(features, train.target, shared).mixed(shared, share)
        theta = self.put(fit.theta, mixture, self.shares(site))
        return SiteParameters(theta, fit.buffers), mixture


class _PFedFdaScheme(Scheme["PFedFda"]):
    keeps_models = True

    def __init__(self, run: Run, method: PFedFda) -> None:
        super().__init__(run, method)
        self.heads = _Heads(self.federation, run.seed)
        self._sites = {site.name: site for site in self.federation.tier(1)}
        rows = {name: float(len(site.data.train)) for name, site in self._sites.items()}
        weights = {name: count / sum(rows.values()) for name, count in rows.items()}
        self.gaussians = self._first(weights)
        self._give_head(weights)

    @property
    def rule(self) -> LocalRule:
        return FrozenHead(self.heads.size)

    def task(self, site: Site, seed: int) -> SiteTask:
        task = super().task(site, seed)
        return replace(task, theta=self.heads.put(task.theta, self.gaussians, self.heads.shares(site)))

    def absorb(self, answers: Answers) -> Absorbed:
        mixtures: dict[str, ClassGaussians] = {}
        for name, fit in answers.answered.items():
            self.own[name], mixtures[name] = self.heads.adapted(self._sites[name], fit, self.gaussians)
        weights = super().absorb(answers).weights
        self.gaussians = average_gaussians({name: mixtures[name] for name in weights}, weights)
        self._give_head(weights)
        return Absorbed(weights)

    def kept(self) -> Mapping[str, Tensor]:
        return {"means": self.gaussians.means, "covariance": self.gaussians.covariance}

    def _first(self, weights: Mapping[str, float]) -> ClassGaussians:
        """Of the first model's features: each site's own, a class it lacks standing at its overall mean."""
        found = {}
        for name, site in self._sites.items():
            middle = self.heads.embedding.features(self.shared, site.data.train.features).mean(0)
            width = len(middle)
            nothing = ClassGaussians(
                middle.expand(self.heads.classes, width), torch.zeros(width, width, dtype=torch.float64)
            )
            found[name] = self.heads.estimated(site, self.shared, nothing)
        return average_gaussians(found, weights)

    def _give_head(self, weights: Mapping[str, float]) -> None:
        """The global model predicts with the global Gaussians and the federation's class shares."""
        shares = torch.stack([weights[n] * self.heads.shares(self._sites[n]) for n in sorted(weights)]).sum(0)
        theta = self.heads.put(self.shared.theta, self.gaussians, shares)
        self.shared = SiteParameters(theta, self.shared.buffers)


@dataclass(frozen=True)
class PFedFda(SchemeMethod):
    scheme = _PFedFdaScheme

    def refusal(self, plan: StudyPlan, settings: FedmapSettings) -> str | None:  # noqa: ARG002
        if plan.task.kind == "cox":
            return "class-conditional Gaussians need classes; no form for survival is published"
        return None

    def personalise(self, run: Run, trained: Trained, sites: tuple[Site, ...]) -> Served:
        federation, prior = run.federation, trained.prior
        assert prior is not None
        heads = _Heads(federation, run.seed)
        shared = ClassGaussians(trained.kept["means"], trained.kept["covariance"])
        settings = fine_tune_settings(self.settings(federation.settings))
        tasks = []
        for site in sites:
            task = fine_tune_task(prior, site.data, run.seed)
            tasks.append(replace(task, theta=heads.put(task.theta, shared, heads.shares(site))))
        rule = FrozenHead(heads.size)
        fits = run.engine.fit(federation.model, settings, prior, tasks, penalised=False, rule=rule)
        answered, failed = sort_out(0, sites, fits)
        return {
            site.name: heads.adapted(site, answered[site.name], shared)[0]
            for site in sites
            if site.name in answered
        }, failed
