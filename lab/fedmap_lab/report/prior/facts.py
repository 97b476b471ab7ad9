"""What a prior learned, from μ, ψ and the models θ_k of the T1 sites: pure, tensors in, numbers out.

By layer: how far sites went from μ, what that cost them in R and how much of it is the convex part f, and how
R bends along the way they went (curvature at μ; a slope is not looked at). Between sites: distances of θ_k,
groups, and a map. f is a sum over parameter tensors, so that its Hessian has one block for each, and a layer
is the sum of its tensors. All sites start from one model, so that their hidden units correspond and distances
mean something.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, leaves_list, linkage
from scipy.spatial.distance import squareform
from sklearn.metrics import silhouette_score
from torch import Tensor

from fedmap.algorithm.model.layers import BatchNorm, Linear
from fedmap.algorithm.model.network import Network
from fedmap.algorithm.prior.penalty import AnchoredPenalty, anchored_penalty
from fedmap_lab.simulation.kept_models import SiteModels

Floats = NDArray[np.float64]
FEWEST_FOR_GROUPS = 4
MOST_GROUPS = 6
CLEAR_GROUPS = 0.5  # mean silhouette; between the two a structure is weak (Kaufman and Rousseeuw, 1990)
WEAK_GROUPS = 0.25
_BLOCK = 8  # sites at once: ψ can be a hundred times θ


@dataclass(frozen=True)
class LayerFacts:
    """One layer: a weight with its bias, or a batch-norm's scale and shift."""

    name: str  # as the network names it
    label: str  # for people
    parameters: int
    spread: float  # root mean square of θ_k − μ over sites and parameters
    size: float  # root mean square of μ over parameters
    convex: float | None  # Σ ω̄_k of this layer's share of f; None where R is not known
    quadratic: float | None  # Σ ω̄_k of its share of α‖θ−μ‖² + ε(‖θ‖² + ‖μ‖²)
    curvature: float | None  # of R at μ along θ_k − μ within the layer, mean over sites; None: nobody moved

    @property
    def convex_share(self) -> float | None:
        if self.convex is None or self.quadratic is None:
            return None
        total = self.convex + self.quadratic
        return self.convex / total if total > 0 else None


@dataclass(frozen=True)
class Groups:
    """Sites that resemble each other. Numbers start at 1, the largest group first; one site is an outlier."""

    of: tuple[int, ...]  # by site
    silhouette: float

    @property
    def count(self) -> int:
        return max(self.of)

    @property
    def outliers(self) -> int:
        return sum(self.of.count(number) == 1 for number in range(1, self.count + 1))

    @property
    def found(self) -> bool:
        """Clear or weak: worth showing."""
        return self.silhouette >= WEAK_GROUPS

    @property
    def clear(self) -> bool:
        return self.silhouette >= CLEAR_GROUPS


@dataclass(frozen=True)
class PriorFacts:
    method: str
    sites: tuple[str, ...]
    regions: tuple[str, ...]
    alpha: float | None  # None: not FedMAP
    epsilon: float | None
    has_convex_part: bool
    layers: tuple[LayerFacts, ...]
    convex_at_mu: float | None  # f(μ, μ): what every site pays, wherever it goes
    from_mu: tuple[float, ...]  # ‖θ_k − μ‖ by site
    distances: Floats  # (sites, sites): ‖θ_k − θ_j‖
    order: tuple[int, ...]  # of the sites, such that neighbours resemble each other
    tree: Floats | None  # SciPy's linkage, Ward's; None for fewer than two sites
    groups: Groups | None  # None: too few sites, or all alike
    places: Floats  # (sites, 2): first two principal components of θ_k − μ
    explained: tuple[float, float]  # share of the spread that each of them shows

    @property
    def floor(self) -> float | None:
        """The curvature that the quadratic part alone gives in every direction."""
        return None if self.alpha is None or self.epsilon is None else 2 * (self.alpha + self.epsilon)


def prior_facts(models: SiteModels) -> PriorFacts:
    """Everything about one prior."""
    moved = (models.theta - models.mu).double()  # (S, d)
    distances = _distances(models.theta)
    tree, order = _tree(distances)
    places, explained = _map(moved)
    return PriorFacts(
        method=models.method,
        sites=models.names,
        regions=tuple(site.region for site in models.sites),
        alpha=None if models.prior is None else models.prior.alpha,
        epsilon=None if models.prior is None else models.prior.epsilon,
        has_convex_part=models.prior is not None and models.prior.convex,
        layers=tuple(_layers(models, moved)),
        convex_at_mu=_convex_at_mu(models),
        from_mu=tuple(moved.norm(dim=1).tolist()),
        distances=distances,
        order=order,
        tree=tree,
        groups=_groups(distances, tree),
        places=places,
        explained=explained,
    )


def layer_labels(network: Network) -> dict[str, str]:
    """Layers with parameters, in order: what they are, for people."""
    labels: dict[str, str] = {}
    for name, layer in network.named_layers:
        if layer.parameters():
            what = name
            if isinstance(layer, Linear):
                what = f"linear {layer.inputs}→{layer.outputs}"
            elif isinstance(layer, BatchNorm):
                what = f"batch norm {layer.channels}"
            tower = name.rpartition(".")[0]
            where = "" if tower == "trunk" else f"{tower}, "
            labels[name] = f"{len(labels) + 1} ({where}{what})"
    return labels


def _layers(models: SiteModels, moved: Tensor) -> Iterator[LayerFacts]:
    spec = models.network.spec
    bounds = np.concatenate([[0], np.cumsum(spec.sizes)])
    tensors_of: dict[str, list[int]] = {}
    for place, name in enumerate(spec.names):
        tensors_of.setdefault(name.rpartition(".")[0], []).append(place)
    penalty = None
    if models.prior is not None:
        penalty = anchored_penalty(spec, models.prior, models.mu, models.psi)
    weights = _weights(models)
    convex = None
    if penalty is not None:
        convex = convex_by_tensor(penalty, models.theta, len(spec.names)) @ weights  # (T,)
    bend = None if penalty is None else curvature_along(penalty, moved.float())  # (S, d): H(θ_k − μ)
    for name, label in layer_labels(models.network).items():
        tensors = tensors_of[name]
        inside = torch.zeros(spec.size, dtype=torch.bool)
        for place in tensors:
            inside[bounds[place] : bounds[place + 1]] = True
        own, mu = moved[:, inside], models.mu[inside].double()
        quadratic = curvature = None
        if models.prior is not None and bend is not None:
            norms = models.theta[:, inside].double().square().sum(1) + mu.square().sum()
            by_site = models.prior.alpha * own.square().sum(1) + models.prior.epsilon * norms
            quadratic = float(by_site @ weights)
            curvature = _along(own, bend[:, inside].double())
        yield LayerFacts(
            name=name,
            label=label,
            parameters=int(inside.sum()),
            spread=float(own.square().mean().sqrt()),
            size=float(mu.square().mean().sqrt()),
            convex=None if convex is None else float(convex[tensors].sum()),
            quadratic=quadratic,
            curvature=curvature,
        )


def _convex_at_mu(models: SiteModels) -> float | None:
    if models.prior is None:
        return None
    penalty = anchored_penalty(models.network.spec, models.prior, models.mu, models.psi)
    return float(penalty.convex_value(models.mu[None]))


def _weights(models: SiteModels) -> Tensor:
    """ω̄ of the last round; alike where they are not known."""
    given = [site.weight for site in models.sites]
    known = torch.tensor([0.0 if weight is None else weight for weight in given], dtype=torch.float64)
    total = float(known.sum())
    return known / total if total > 0 else torch.full((len(given),), 1 / len(given), dtype=torch.float64)


def convex_by_tensor(penalty: AnchoredPenalty, theta: Tensor, tensors: int) -> Tensor:
    """f of each parameter tensor alone at each site, (T, S): its output weights kept, all others zero."""
    convex = penalty.convex
    if convex is None:
        return torch.zeros(tensors, len(theta), dtype=torch.float64)
    parts = []
    for tensor in range(tensors):
        output = torch.zeros_like(convex.psi.output)
        output[tensor] = convex.psi.output[tensor]
        alone = replace(penalty, convex=replace(convex, psi=replace(convex.psi, output=output)))
        parts.append(torch.cat([alone.convex_value(block) for block in torch.split(theta, _BLOCK)]))
    return torch.stack(parts).double()


def curvature_along(penalty: AnchoredPenalty, directions: Tensor) -> Tensor:
    """H v for each direction v (S, d), H the Hessian of R in θ at μ."""
    found = []
    for block in torch.split(directions, _BLOCK):
        theta = penalty.mu.repeat(len(block), 1).requires_grad_()
        (slope,) = torch.autograd.grad(penalty.value(theta).sum(), theta, create_graph=True)
        (bend,) = torch.autograd.grad((slope * block).sum(), theta)
        found.append(bend)
    return torch.cat(found)


def _along(own: Tensor, bend: Tensor) -> float | None:
    """vᵀHv / ‖v‖², mean over the sites that moved at all in this layer."""
    squares = own.square().sum(1)
    went = squares > 0
    if not bool(went.any()):
        return None
    return float(((own * bend).sum(1)[went] / squares[went]).mean())


def _distances(theta: Tensor) -> Floats:
    """(S, S), symmetric, zero on the diagonal."""
    found = torch.cdist(theta.double(), theta.double(), compute_mode="donot_use_mm_for_euclid_dist").numpy()
    np.fill_diagonal(found, 0.0)
    return np.asarray((found + found.T) / 2, dtype=np.float64)


def _tree(distances: Floats) -> tuple[Floats | None, tuple[int, ...]]:
    if len(distances) < 2:
        return None, tuple(range(len(distances)))
    tree = linkage(squareform(distances, checks=False), method="ward", optimal_ordering=True)
    return np.asarray(tree, dtype=np.float64), tuple(int(place) for place in leaves_list(tree))


def _groups(distances: Floats, tree: Floats | None) -> Groups | None:
    """The cut of the tree whose groups are best apart (mean silhouette)."""
    sites = len(distances)
    if tree is None or sites < FEWEST_FOR_GROUPS or not distances.any():
        return None
    best: Groups | None = None
    for count in range(2, min(MOST_GROUPS, sites - 1) + 1):
        labels = fcluster(tree, count, criterion="maxclust")
        if len(set(labels.tolist())) != count:
            continue
        silhouette = float(silhouette_score(distances, labels, metric="precomputed"))
        if best is None or silhouette > best.silhouette:
            sizes = sorted(set(labels.tolist()), key=lambda one: (-int((labels == one).sum()), one))
            best = Groups(tuple(1 + sizes.index(one) for one in labels.tolist()), silhouette)
    return best


def _map(moved: Tensor) -> tuple[Floats, tuple[float, float]]:
    """Principal components of θ_k − μ around their mean; signs such that the largest entry is positive."""
    centred = (moved - moved.mean(0)).numpy()
    gram = centred @ centred.T  # (S, S): d may be large
    values, vectors = np.linalg.eigh(gram)
    places = np.zeros((len(centred), 2))
    explained = [0.0, 0.0]
    total = float(np.clip(values, 0, None).sum())
    for axis in range(min(2, len(values))):
        value = max(float(values[-1 - axis]), 0.0)
        if total <= 0 or value <= 1e-12 * total:
            continue
        vector = vectors[:, -1 - axis]
        places[:, axis] = vector * np.sqrt(value) * np.sign(vector[np.argmax(np.abs(vector))])
        explained[axis] = value / total
    return places, (explained[0], explained[1])
