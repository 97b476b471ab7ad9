"""pFedGP: one network for all learns a kernel, and each site classifies with a Gaussian process on its own
rows.

I. Achituve, A. Shamsian, A. Navon, G. Chechik, E. Fetaya. Personalized Federated Learning with Gaussian
Processes. NeurIPS 2021, Algorithm 1 (pFedGP): local steps on the evidence of the process, the network
averaged by sample count. The kernel is an RBF on the features before the plan's last layer, its scale as in
the authors' code. Three departures keep it deterministic and within memory (docs/adr/0027): mean-field
Pólya-Gamma weights instead of Gibbs samples, the evidence of each mini-batch instead of all rows, and one
process per class against the rest instead of a tree. Predictions condition on at most `rows` training rows,
drawn at random.

Classes only: for survival the FedMAP paper reports figures without saying how, so it is refused there. T2:
the network fine-tuned on the site's evidence, then a process on its own rows. T3: nothing; without rows of
its own a site's process knows nothing, and the shared network has no head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

import torch

from fedmap.algorithm.fit.values import Model
from fedmap.algorithm.model.layers import Buffers
from fedmap.algorithm.model.network import Network
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.prior.values import Prior
from fedmap.algorithm.seeding import derive_seed, numpy_stream
from fedmap.algorithm.settings import FedmapSettings
from fedmap.study.personalisation import fine_tune_settings, fine_tune_task
from fedmap.study.plan import StudyPlan
from fedmap_lab.federation.sites import Federation, Site
from fedmap_lab.methods.embedding import Embedding, embedding_of
from fedmap_lab.methods.kernel_head import Evidence, Kernel, KernelHead
from fedmap_lab.methods.method import Method, Run, Served, Trained, Watch, models_of, sort_out
from fedmap_lab.methods.scheme import Scheme


@dataclass(frozen=True)
class PFedGp(Method):
    scale: float = 8.0
    length: float = 1.0
    rows: int = 512

    space: ClassVar[Mapping[str, tuple[float, ...]]] = {"scale": (2.0, 8.0), "length": (0.5, 1.0, 2.0)}

    def refusal(self, plan: StudyPlan, settings: FedmapSettings) -> str | None:  # noqa: ARG002
        if plan.task.kind == "cox":
            return "a Gaussian-process classifier needs classes; no form for survival is published"
        return None

    def train(self, run: Run, watch: Watch) -> Trained:
        parts = _Parts(self, run.federation)
        first = run.start(self.settings(run.federation.settings).prior)
        start = SiteParameters(first.mu[: parts.embedding.size], first.buffers)
        scheme = _PFedGpScheme(run, self, start, parts.training)
        trained = Trained({}, None)
        if parts.embedding.size:  # a linear model has no layer before its last: nothing to train
            trained = scheme.trained(watch)
        shared = scheme.shared
        personal = {site.name: parts.conditioned(site, shared, run.seed) for site in run.federation.tier(1)}
        kept = {"network": shared.theta, **asdict(shared.buffers)}
        return replace(trained, personal=personal, model=parts.predicting, kept=kept)

    def personalise(self, run: Run, trained: Trained, sites: tuple[Site, ...]) -> Served:
        parts, kept, seed = _Parts(self, run.federation), trained.kept, run.seed
        shared = SiteParameters(kept["network"], Buffers(kept["mean"], kept["variance"], kept["count"]))
        if not parts.embedding.size:
            return {site.name: parts.conditioned(site, shared, seed) for site in sites}, ()
        settings = fine_tune_settings(self.settings(run.federation.settings))
        at = Prior(shared.theta, shared.buffers, torch.zeros(0))
        tasks = [fine_tune_task(at, site.data, seed) for site in sites]
        fits = run.engine.fit(parts.training, settings, at, tasks, penalised=False)
        answered, failed = sort_out(0, sites, fits)
        own = models_of(answered)
        return {s.name: parts.conditioned(s, own[s.name], seed) for s in sites if s.name in own}, failed


class _Parts:
    """The two models of pFedGP: one that trains the features, one that predicts with a process on them."""

    def __init__(self, method: PFedGp, federation: Federation) -> None:
        self.embedding: Embedding = embedding_of(federation.model)
        kernel = Kernel(method.scale, method.length)
        classes = max(2, self.embedding.outputs)
        likelihood = federation.model.likelihood
        self.training = Model(self.embedding.network, likelihood, Evidence(kernel, classes))
        longest = max(len(site.data.train) for site in federation.sites)
        rows = min(method.rows, longest)
        self._head = KernelHead(self.embedding.width, rows, 1 if classes == 2 else classes, kernel)
        network = self.embedding.network
        whole = Network(network.inputs, self._head.outputs, network.branches, (*network.trunk, self._head))
        self.predicting = Model(whole, "bernoulli" if classes == 2 else "categorical")

    def conditioned(self, site: Site, parameters: SiteParameters, seed: int) -> SiteParameters:
        """A site's process: the network's parameters with the kernel head of its own rows."""
        train = site.data.train
        drawn = numpy_stream(derive_seed(seed, "kernel-rows", site.name)).permutation(len(train))
        chosen = torch.from_numpy(drawn[: self._head.rows].copy())
        features = self.embedding.features(parameters, train.features[chosen])
        head = self._head.conditioned(features, train.target[chosen])
        return SiteParameters(torch.cat([parameters.theta, head]), parameters.buffers)


class _PFedGpScheme(Scheme[PFedGp]):
    """FedAvg of the network. It predicts nothing by itself, so nobody watches models between rounds."""

    def personal(self) -> Mapping[str, SiteParameters]:
        return {}

    def prior(self) -> None:
        return None
