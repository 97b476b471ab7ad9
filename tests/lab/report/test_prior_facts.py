"""What is said of a prior, held to its mathematics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmap.algorithm.model.parameters import ParameterSpec
from fedmap.algorithm.prior.convex_network import ConvexNetwork
from fedmap.algorithm.prior.penalty import anchored_penalty
from fedmap.algorithm.settings import PriorSettings
from fedmap.errors import FedmapError
from fedmap.study.models import model_of
from fedmap_lab.report.prior.facts import Groups, convex_by_tensor, curvature_along, prior_facts
from fedmap_lab.report.prior.words import explain_layers, explain_sites
from fedmap_lab.simulation.kept_models import ABOUT, SiteModels, read_models
from tests.lab.report.made_out import MadeOut, MadeSite, write_made_models

SMALL = PriorSettings(hidden=(8, 4))
NAMES = tuple(f"s{number}" for number in range(8))
OFFSETS = {name: (0.0 if number < 5 else 0.5) for number, name in enumerate(NAMES)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def made(folder: Path, prior: PriorSettings | None, offsets: dict[str, float]) -> SiteModels:
    out = MadeOut({name: MadeSite(region="north") for name in offsets}, {})
    target = folder / f"{prior and prior.convex}-{len(offsets)}"
    write_made_models(target, out, prior, offsets)
    return read_models(target)


def test_layers_of_the_penalty_add_up_to_the_penalty(folder: Path) -> None:
    models = made(folder, SMALL, OFFSETS)
    facts = prior_facts(models)
    penalty = anchored_penalty(models.network.spec, SMALL, models.mu, models.psi)
    convex = sum(layer.convex or 0.0 for layer in facts.layers)
    whole = convex + sum(layer.quadratic or 0.0 for layer in facts.layers)
    assert convex == pytest.approx(float(penalty.convex_value(models.theta).mean()), rel=1e-5)
    assert whole == pytest.approx(float(penalty.value(models.theta).mean()), rel=1e-5)
    assert sum(layer.parameters for layer in facts.layers) == models.network.spec.size
    by_tensor = convex_by_tensor(penalty, models.theta, len(models.network.spec.names))
    assert bool((by_tensor >= 0).all())


def test_a_quadratic_prior_is_as_steep_as_alpha_says_in_every_layer(folder: Path) -> None:
    facts = prior_facts(made(folder, PriorSettings(convex=False, alpha=0.3), OFFSETS))
    for layer in facts.layers:
        assert layer.curvature == pytest.approx(2 * (0.3 + 1e-4), rel=1e-4)
        assert layer.convex_share == 0.0
    assert "quadratic only" in " ".join(explain_layers(facts))


def test_curvature_is_called_a_bend_and_never_a_slope(folder: Path) -> None:
    facts = prior_facts(made(folder, SMALL, OFFSETS))
    floor = facts.floor or 0.0
    for times, said in ((1.0, "a constant or a straight slope"), (3.0, "bends 3.00 times as much")):
        layers = tuple(replace(layer, curvature=times * floor) for layer in facts.layers)
        words = " ".join(explain_layers(replace(facts, layers=layers)))
        assert said in words
        assert "steep" not in words


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_curvature_is_the_second_difference_of_the_penalty_and_never_below_its_floor(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    prior = replace(SMALL, seed=seed)
    spec = made_spec()
    mu = torch.randn(spec.size, generator=generator, dtype=torch.float64)
    psi = ConvexNetwork(spec, prior).initialise().double()
    penalty = anchored_penalty(spec, prior, mu, psi)
    direction = torch.randn(1, spec.size, generator=generator, dtype=torch.float64)
    found = float((curvature_along(penalty, direction) * direction).sum())
    step = 1e-3
    around = torch.stack([mu - step * direction[0], mu, mu + step * direction[0]])
    low, middle, high = penalty.value(around).tolist()
    assert found == pytest.approx((low - 2 * middle + high) / step**2, rel=1e-3)
    assert found >= 2 * (prior.alpha + prior.epsilon) * float(direction.square().sum()) * (1 - 1e-9)


def made_spec() -> ParameterSpec:
    return model_of(MadeOut({}, {}).plan).network.spec


def test_two_kinds_of_sites_are_found_named_and_stand_apart(folder: Path) -> None:
    facts = prior_facts(made(folder, SMALL, OFFSETS))
    assert facts.groups is not None
    assert facts.groups.of == (1, 1, 1, 1, 1, 2, 2, 2)
    assert facts.groups.clear
    words = " ".join(explain_sites(facts))
    assert "Group 1, 5 sites: s0, s1, s2, s3, s4" in words
    assert facts.explained[0] > 0.9
    assert np.allclose(facts.distances, facts.distances.T)
    assert not facts.distances.diagonal().any()


@pytest.mark.parametrize(
    ("silhouette", "said"), [(0.24, "No groups"), (0.3, "A weak sign"), (0.5, "Clear: sites fall into")]
)
def test_groups_are_called_clear_only_from_a_silhouette_of_a_half(
    folder: Path, silhouette: float, said: str
) -> None:
    facts = prior_facts(made(folder, SMALL, OFFSETS))
    assert facts.groups is not None
    words = " ".join(explain_sites(replace(facts, groups=replace(facts.groups, silhouette=silhouette))))
    assert said in words
    assert ("Clear" in words) == (silhouette >= 0.5)


def test_one_site_apart_is_an_outlier_and_a_region_is_named_for_a_majority_only(folder: Path) -> None:
    facts = prior_facts(made(folder, SMALL, OFFSETS))
    regions = ("north", "north", "south", "east", "west", "east", "east", "north")
    groups = Groups((1, 1, 1, 1, 1, 2, 2, 3), 0.6)
    said = explain_sites(replace(facts, regions=regions, groups=groups))
    assert "Clear: sites fall into 2 groups and 1 outlier (mean silhouette 0.60)." in said
    assert "Group 1, 5 sites: s0, s1, s2, s3, s4." in said, "two of five are no majority"
    assert "Group 2, 2 sites: s5, s6; 2 of 2 in east." in said
    assert "Outlier: s7." in said


def test_one_site_is_explained_without_others(folder: Path) -> None:
    facts = prior_facts(made(folder, SMALL, {"s0": 0.3}))
    assert facts.groups is None
    assert "Only one site trained" in " ".join((*explain_layers(facts), *explain_sites(facts)))


def test_damaged_models_are_refused_with_a_hint(folder: Path) -> None:
    made(folder, SMALL, {"s0": 0.1, "s1": 0.2})
    target = folder / "True-2"
    (target / "psi.safetensors").write_bytes(b"no tensors")
    with pytest.raises(FedmapError, match=r"psi\.safetensors"):
        read_models(target)
    (target / ABOUT).write_text("{}")
    with pytest.raises(FedmapError, match="not written by this version") as caught:
        read_models(target)
    assert caught.value.hint


@pytest.mark.parametrize("name", ["../../elsewhere", "a/b", ""])
def test_a_site_whose_name_leads_out_of_the_folder_is_refused(folder: Path, name: str) -> None:
    made(folder, SMALL, {"s0": 0.1, "s1": 0.2, "s2": 0.3})
    about = folder / "True-3" / ABOUT
    about.write_text(about.read_text().replace('"s0"', f'"{name}"'))
    with pytest.raises(FedmapError, match="cannot be used") as caught:
        read_models(about.parent)
    assert caught.value.hint


def test_models_are_for_their_owner_alone(folder: Path) -> None:
    made(folder, SMALL, {"s0": 0.1, "s1": 0.2, "s2": 0.3, "s3": 0.4})
    kept = folder / "True-4"
    assert {path.stat().st_mode & 0o777 for path in (kept, kept / "personal")} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in kept.rglob("*") if path.is_file()} == {0o600}
