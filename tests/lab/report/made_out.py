"""The folder of a comparison, written by hand: figures that a test chose, so that results can be checked."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.prior.convex_network import ConvexNetwork
from fedmap.algorithm.settings import PriorSettings
from fedmap.study.models import model_of
from fedmap.study.plan.canonical import canonical_form
from fedmap.study.plan.reading import parse_plan
from fedmap.study.plan.study_plan import StudyPlan
from fedmap.study.tensors.parameter_files import encode_parameters, encode_psi
from fedmap_lab.simulation.kept_models import ABOUT, About, KeptSite, write_models
from tests.lab.conftest import BINARY_PLAN

PLAN = BINARY_PLAN.replace("hidden = [16, 8]", "hidden = [3]").replace("dropout = 0.1", "dropout = 0.0")


@dataclass(frozen=True)
class MadeSite:
    tier: int = 1
    region: str = ""
    rows: int = 100
    outcome_share: float | None = 0.3


@dataclass(frozen=True)
class MadeOut:
    """What the folder is to say. `values`: method → site → a value for each seed."""

    sites: Mapping[str, MadeSite]
    values: Mapping[str, Mapping[str, Sequence[float]]]
    metric: str = "auroc"
    subgroups: Sequence[tuple[str, int, str, str, str, float]] = ()  # method, tier, site, column, category
    calibration: Sequence[tuple[str, int, int, float, float]] = ()  # method, tier, rows, predicted, observed
    rounds: Sequence[tuple[str, int, float, float, float]] = ()  # method, round, R, f, validation figure
    weights: Mapping[str, float] = field(default_factory=dict)  # FedMAP's, last round
    failures: Sequence[tuple[str, str, str]] = ()  # method, kind, reason
    failed_fits: Sequence[tuple[str, str]] = ()  # method, site
    plan: StudyPlan = field(default_factory=lambda: parse_plan(PLAN, "plan.toml"))


def write_out(out: Path, made: MadeOut) -> Path:
    out.mkdir(parents=True)
    seeds = max(len(values) for of_site in made.values.values() for values in of_site.values())
    plan = made.plan
    described = {
        "study": plan.study.name,
        "title": plan.study.title,
        "metric": made.metric,
        "task": plan.task.kind,
        "plan_digest": plan.digest,
        "data_digest": "d" * 64,
        "rounds": 2,
        "trials": 0,
        "engine": "vectorised",
        "methods": list(dict.fromkeys([*made.values, *(method for method, _, _ in made.failures)])),
        "seeds": list(range(seeds)),
        "excluded_sites": [],
        "seconds": 1.0,
        "versions": {"python": "3"},
        "command": "fedmap-lab compare --out <out>",
        "plan": plan.model_dump(mode="json"),
    }
    (out / "comparison.json").write_text(json.dumps(described))
    _table(
        out / "metrics.csv",
        ("method", "seed", "tier", "site", "region", "model", "metric", "value", "note"),
        (
            (method, seed, site.tier, name, site.region, _model(site.tier), made.metric, repr(value), "")
            for method, of_site in made.values.items()
            for name, values in of_site.items()
            for site in (made.sites[name],)
            for seed, value in enumerate(values)
        ),
    )
    _table(
        out / "sites.csv",
        ("site", "tier", "region", "train", "validation", "test", "outcome_share"),
        (
            (name, s.tier, s.region, s.rows - 20, 10, 10, "" if s.outcome_share is None else s.outcome_share)
            for name, s in made.sites.items()
        ),
    )
    _table(
        out / "subgroups.csv",
        ("method", "seed", "tier", "site", "column", "category", "value"),
        ((method, 0, *rest) for method, *rest in made.subgroups),
    )
    _table(
        out / "calibration.csv",
        ("method", "seed", "tier", "model", "rows", "predicted", "observed", "low", "high"),
        (
            (m, 0, tier, _model(tier), rows, predicted, seen, max(0.0, seen - 0.05), min(1.0, seen + 0.05))
            for m, tier, rows, predicted, seen in made.calibration
        ),
    )
    _table(
        out / "rounds.csv",
        ("method", "seed", "round", "penalty", "convex_penalty", "personal", "shared"),
        ((method, 0, number, whole, part, seen, "") for method, number, whole, part, seen in made.rounds),
    )
    _table(
        out / "omega.csv",
        ("method", "seed", "round", "site", "weight"),
        (("fedmap", 0, 2, site, weight) for site, weight in made.weights.items()),
    )
    _table(
        out / "failures.csv",
        ("method", "seed", "kind", "round", "site", "reason"),
        [
            *((method, 0, kind, "", "", reason) for method, kind, reason in made.failures),
            *((method, 0, "site", 1, site, "the loss is not finite") for method, site in made.failed_fits),
        ],
    )
    return out


def write_made_models(
    folder: Path, made: MadeOut, prior: PriorSettings | None, offset_of: Mapping[str, float]
) -> None:
    """A μ of a fixed seed, and θ_k = μ + offset in every parameter."""
    network = model_of(made.plan).network
    mu = network.initialise(7)
    about = About(
        method="fedmap",
        seed=0,
        rounds=2,
        plan=canonical_form(made.plan),
        prior=prior,
        sites=tuple(
            KeptSite(name=name, region=made.sites[name].region, weight=1 / len(offset_of))
            for name in offset_of
        ),
    )
    buffers = network.initial_buffers()
    files = {"mu.safetensors": encode_parameters(network, SiteParameters(mu, buffers))}
    if prior is not None and prior.convex:
        psi = ConvexNetwork(network.spec, prior).initialise()
        files["psi.safetensors"] = encode_psi(network, prior, psi)
    for number, (name, offset) in enumerate(offset_of.items()):
        noise = 0.01 * torch.randn(mu.shape, generator=torch.Generator().manual_seed(number))
        own = SiteParameters(mu + offset + noise, buffers)
        files[f"personal/{name}.safetensors"] = encode_parameters(network, own)
    write_models(folder, files | {ABOUT: about.model_dump_json().encode()})


def _model(tier: int) -> str:
    return "global" if tier == 3 else "personal"


def _table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)
