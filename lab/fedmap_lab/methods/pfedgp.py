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

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmap.algorithm.fit.values import Model
from fedmap.algorithm.model.layers import Buffers, Pass, Saved, Shapes
from fedmap.algorithm.model.likelihood import Outcome
from fedmap.algorithm.model.network import Network
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.prior.values import Prior
from fedmap.algorithm.seeding import derive_seed, numpy_stream
from fedmap.algorithm.settings import FedmapSettings
from fedmap.errors import ModelError
from fedmap.study.personalisation import fine_tune_settings, fine_tune_task
from fedmap.study.plan.study_plan import StudyPlan
from fedmap_lab.federation.sites import Federation, Site
from fedmap_lab.methods.embedding import Embedding, embedding_of
from fedmap_lab.methods.method import Method, Run, Served, Trained, Watch, models_of, sort_out
from fedmap_lab.methods.scheme import Scheme

EVIDENCE_ROWS = 256  # rows that share a process in training; more are cut into blocks
SWEEPS = 6  # of the fixed point for c
FINAL_SWEEPS = 30


@dataclass(frozen=True)
class Kernel:
    """s·exp(−‖z − z'‖² / (2ℓ²E)): distances are per feature, so that ℓ means the same for every width E."""

    scale: float
    length: float

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """(…, A, E), (…, B, E) → (…, A, B)."""
        square = x.square().sum(-1, keepdim=True) + y.square().sum(-1).unsqueeze(-2)
        distance = (square - 2 * x @ y.transpose(-1, -2)).clamp(min=0)
        return self.scale * torch.exp(distance / (-2 * self.length**2 * x.shape[-1]))


@dataclass(frozen=True)
class Evidence:
    """Minus the bound on the log evidence of each site's rows, (S, B, E) → (S,): the loss of the features."""

    kernel: Kernel
    classes: int

    def __call__(self, outputs: Tensor, outcome: Outcome) -> Tensor:
        assert outcome.label is not None
        total = outputs.new_zeros(len(outputs))
        blocks = (
            torch.split(part, EVIDENCE_ROWS, dim=1) for part in (outputs, outcome.label, outcome.weight)
        )
        for features, label, true_row in zip(*blocks, strict=True):
            weight = true_row.to(outputs.dtype)
            gram = self.kernel(features, features) * weight.unsqueeze(1) * weight.unsqueeze(2)
            for one in range(1, 2) if self.classes == 2 else range(self.classes):
                total = total - bound(gram, (label == one).to(outputs.dtype), weight)
        return total


def bound(gram: Tensor, positive: Tensor, weight: Tensor) -> Tensor:
    """Σ [log σ(c) − c/2 + ωc²/2] + ½κᵀΣκ − ½log|I + √ω K √ω|, with Σ = (K⁻¹ + Ω)⁻¹ and κ = y − ½; (S,)."""
    kappa = (positive - 0.5) * weight
    with torch.no_grad():
        c, omega = fixed_point(gram, kappa, weight, SWEEPS)
    root = omega.sqrt()
    cholesky = _factor(gram, root)
    mean = _posterior_mean(gram, kappa, root, cholesky)
    each = (F.logsigmoid(c) - c / 2 + omega * c.square() / 2) * weight
    determinant = cholesky.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return each.sum(-1) + 0.5 * (kappa * mean).sum(-1) - determinant


def fixed_point(gram: Tensor, kappa: Tensor, weight: Tensor, sweeps: int) -> tuple[Tensor, Tensor]:
    """c and ω of each row, (S, B): c² = E[f²] under the ω before it."""
    c = torch.ones_like(kappa)
    for _ in range(sweeps):
        root = _omega(c, weight).sqrt()
        cholesky = _factor(gram, root)
        mean = _posterior_mean(gram, kappa, root, cholesky)
        reach = torch.linalg.solve_triangular(cholesky, root.unsqueeze(-1) * gram, upper=False)
        variance = (gram.diagonal(dim1=-2, dim2=-1) - reach.square().sum(-2)).clamp(min=0)
        c = (mean.square() + variance).sqrt()
    return c, _omega(c, weight)


def _omega(c: Tensor, weight: Tensor) -> Tensor:
    safe = c.clamp(min=1e-4)
    return torch.tanh(safe / 2) / (2 * safe) * weight


def _factor(gram: Tensor, root: Tensor) -> Tensor:
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype)
    factor: Tensor = torch.linalg.cholesky(eye + root.unsqueeze(-1) * gram * root.unsqueeze(-2))
    return factor


def _posterior_mean(gram: Tensor, kappa: Tensor, root: Tensor, cholesky: Tensor) -> Tensor:
    """Σκ = Kκ − K√ω (I + √ωK√ω)⁻¹ √ωKκ."""
    direct = (gram @ kappa.unsqueeze(-1)).squeeze(-1)
    inner = torch.cholesky_solve((root * direct).unsqueeze(-1), cholesky)
    return direct - (gram @ (root.unsqueeze(-1) * inner)).squeeze(-1)


@dataclass(frozen=True)
class KernelHead:
    """The process conditioned on up to `rows` labelled rows, as a layer: features → logits.

    A logit is the latent mean over √(1 + πv/8), v its variance, so that its sigmoid is the expected
    probability; of several classes, the logarithms of their probabilities. Conditioned, never trained.
    """

    width: int
    rows: int
    outputs: int
    kernel: Kernel

    def parameters(self) -> Shapes:
        return (
            ("anchors", (self.rows, self.width)),
            ("mean", (self.outputs, self.rows)),
            ("variance", (self.outputs, self.rows, self.rows)),
        )

    def initialise(self, _: torch.Generator) -> tuple[Tensor, ...]:
        return tuple(torch.zeros(shape) for _, shape in self.parameters())

    def forward(self, params: tuple[Tensor, ...], x: Tensor, at: Pass) -> tuple[Tensor, Saved]:
        if at.training:
            raise ModelError("a kernel head cannot be trained", hint="condition it on rows instead")
        anchors, mean, variance = params  # (S, M, E), (S, o, M), (S, o, M, M)
        reach = self.kernel(x, anchors)  # (S, B, M)
        latent = reach @ mean.transpose(1, 2)  # (S, B, o)
        taken = torch.einsum("sbm,somn,sbn->sbo", reach, variance, reach)
        logit = latent / torch.sqrt(1 + math.pi / 8 * (self.kernel.scale - taken).clamp(min=0))
        return (logit if self.outputs == 1 else F.logsigmoid(logit)), None

    def backward(
        self, _: tuple[Tensor, ...], __: Saved, ___: Tensor, ____: bool
    ) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        raise ModelError("a kernel head cannot be trained", hint="condition it on rows instead")

    def conditioned(self, features: Tensor, labels: Tensor) -> Tensor:
        """The layer's parameters, flat, from at most `rows` labelled rows, in float64."""
        used = len(features)
        gram = self.kernel(features, features)[None]
        weight = torch.ones(1, used, dtype=torch.float64)
        anchors = torch.zeros(self.rows, self.width, dtype=torch.float64)
        anchors[:used] = features
        mean = torch.zeros(self.outputs, self.rows, dtype=torch.float64)
        variance = torch.zeros(self.outputs, self.rows, self.rows, dtype=torch.float64)
        for number in range(self.outputs):
            positive = labels == (1 if self.outputs == 1 else number)
            kappa = positive.double()[None] - 0.5
            _, omega = fixed_point(gram, kappa, weight, FINAL_SWEEPS)
            root = omega.sqrt()
            cholesky = _factor(gram, root)
            inverse = torch.cholesky_inverse(cholesky[0]) * root[0] * root[0].unsqueeze(-1)
            variance[number, :used, :used] = inverse
            mean[number, :used] = kappa[0] - inverse @ (gram[0] @ kappa[0])
        return torch.cat([part.flatten() for part in (anchors, mean, variance)]).float()


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
