"""The prior and the models of the T1 sites after a run, as files that can be explained later.

    models.json                what ran: method, seed, plan, prior settings, sites with region and weight
    mu.safetensors             the global model
    psi.safetensors            the learned penalty, where the prior has one
    personal/SITE.safetensors  the model of each T1 site

Kept for methods that have both a global model and models of their own at the T1 sites, in the plan's network.
No patient's row is ever among them. `models.json` is written last: a folder that has it is whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, JsonValue, ValidationError
from torch import Tensor

from fedmap.algorithm.model.network import Network
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.settings import PriorSettings
from fedmap.data.cohort_directory import is_plain_name
from fedmap.errors import FedmapError, ModelError, PlanError
from fedmap.files.durable import make_folder, read_file, write_durably
from fedmap.study.models import model_of
from fedmap.study.plan.canonical import canonical_form, plan_of
from fedmap.study.plan.study_plan import StudyPlan
from fedmap.study.tensors.parameter_files import decode_parameters, decode_psi, encode_parameters, encode_psi
from fedmap_lab.methods.method import Method
from fedmap_lab.simulation.simulate import Study

ABOUT = "models.json"
MOST_BYTES = 32 << 20
"""Of methods other than FedMAP itself: larger ones are not kept."""
_HINT = "give the folder that `fedmap-lab compare` or `fedmap-lab simulate` wrote; if it is one, run it again"


def _plain_name(name: str) -> str:
    if not is_plain_name(name):
        raise ValueError("the site's name must be a plain file name")
    return name


class KeptSite(BaseModel):
    """A T1 site whose model is kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, AfterValidator(_plain_name)]  # a file is read by it
    region: str
    weight: float | None  # ω̄ in the last round


class About(BaseModel):
    """What the files belong to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: str
    seed: int
    rounds: int
    plan: dict[str, JsonValue]
    prior: PriorSettings | None  # None: not FedMAP, so that nothing is known of its penalty
    sites: tuple[KeptSite, ...]


@dataclass(frozen=True)
class SiteModels:
    """The files read back. θ_k are the rows of `theta`, in the order of `sites`."""

    method: str
    seed: int
    plan: StudyPlan
    network: Network
    prior: PriorSettings | None
    sites: tuple[KeptSite, ...]
    mu: Tensor  # (d,)
    psi: Tensor  # (p,); empty where the prior is quadratic only, or none
    theta: Tensor  # (sites, d)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(site.name for site in self.sites)


def about_run(study: Study, name: str, method: Method, rounds: int, seed: int) -> About | None:
    """What `models.json` says of a run; None where its models are not of the kind that is kept."""
    trained, federation = study.trained, study.federation
    if trained.prior is None or trained.model is not None or not trained.personal:
        return None
    first = next(iter(trained.personal.values())).theta
    alike = all(torch.equal(own.theta, first) for own in trained.personal.values())
    if alike and not method.penalised:  # one model for all
        return None
    weights = trained.history[-1].weights if trained.history else {}
    return About(
        method=name,
        seed=seed,
        rounds=rounds,
        plan=canonical_form(federation.plan),
        prior=method.settings(federation.settings).prior if method.penalised else None,
        sites=tuple(
            KeptSite(name=site.name, region=site.region, weight=weights.get(site.name))
            for site in federation.tier(1)
            if site.name in trained.personal
        ),
    )


def encode_models(study: Study, about: About) -> dict[str, bytes]:
    """All files by name, in the order in which they are written; nothing where they would take too much."""
    prior, network = study.trained.prior, study.federation.model.network
    assert prior is not None
    size = 4 * (prior.psi.numel() + prior.mu.numel() * (1 + len(about.sites)))
    if about.method != "fedmap" and size > MOST_BYTES:
        return {}
    files = {"mu.safetensors": encode_parameters(network, SiteParameters(prior.mu, prior.buffers))}
    if about.prior is not None and about.prior.convex:
        files["psi.safetensors"] = encode_psi(network, about.prior, prior.psi)
    for site in about.sites:
        own = study.trained.personal[site.name]
        files[f"personal/{site.name}.safetensors"] = encode_parameters(network, own)
    return files | {ABOUT: about.model_dump_json(indent=2).encode() + b"\n"}


def write_models(folder: Path, files: Mapping[str, bytes]) -> None:
    """Durably, `models.json` last; for the owner alone, as model updates are kept."""
    make_folder(folder / "personal", mode=0o700)
    for name, data in files.items():
        write_durably(folder / name, data, mode=0o600)


def read_models(folder: Path) -> SiteModels:
    """What `write_models` wrote, or an error that says what is wrong with the folder."""
    if not (folder / ABOUT).is_file():
        raise FedmapError(f"{folder} holds no models of a run ({ABOUT} is missing)", hint=_HINT)
    try:
        about = About.model_validate_json(read_file(folder / ABOUT))
        plan = plan_of(about.plan, str(folder / ABOUT))
        return _read(folder, about, plan)
    except (ValidationError, PlanError, ModelError) as error:
        reason = "not written by this version" if isinstance(error, ValidationError) else error.message
        raise FedmapError(f"{folder / ABOUT}: the models cannot be used: {reason}", hint=_HINT) from error


def _read(folder: Path, about: About, plan: StudyPlan) -> SiteModels:
    network = model_of(plan).network
    if not about.sites:
        raise ModelError("no site is listed", hint=_HINT)
    psi = torch.zeros(0)
    if about.prior is not None and about.prior.convex:
        psi = decode_psi(network, about.prior, folder / "psi.safetensors", "psi.safetensors")
    theta = [
        decode_parameters(network, folder / "personal" / f"{site.name}.safetensors", site.name).theta
        for site in about.sites
    ]
    return SiteModels(
        method=about.method,
        seed=about.seed,
        plan=plan,
        network=network,
        prior=about.prior,
        sites=about.sites,
        mu=decode_parameters(network, folder / "mu.safetensors", "mu.safetensors").theta,
        psi=psi,
        theta=torch.stack(theta),
    )
