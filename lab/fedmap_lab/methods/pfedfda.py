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

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedmap.algorithm.fit.rule import AddedGradient, LocalRule
from fedmap.algorithm.fit.values import LocalFit, SiteTask
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.seeding import derive_seed
from fedmap.algorithm.settings import FedmapSettings
from fedmap.study.personalisation import fine_tune_settings, fine_tune_task
from fedmap.study.plan import StudyPlan
from fedmap_lab.federation.sites import Federation, Site
from fedmap_lab.methods.class_gaussians import (
    ClassGaussians,
    average_gaussians,
    best_share,
    class_shares,
    estimate,
)
from fedmap_lab.methods.embedding import Embedding, embedding_of
from fedmap_lab.methods.method import Run, Served, Trained, sort_out
from fedmap_lab.methods.scheme import Absorbed, Answers, Scheme, SchemeMethod

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
