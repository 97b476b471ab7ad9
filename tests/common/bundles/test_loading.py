"""Loading: what comes out of a bundle has the bits of the prior that went in."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Literal

import pytest
import torch

from fedmap.algorithm.model.layers import Buffers
from fedmap.bundles.loading import load_prior, load_shared
from fedmap.bundles.manifest import MU
from fedmap.bundles.verification import VerifiedBundle, verify_bundle
from fedmap.errors import ModelError, StateError
from fedmap.study.models import model_of
from fedmap.study.plan.study_plan import StudyPlan
from fedmap.study.tensors.parameter_files import PriorFile, decode_prior, encode_prior
from tests.common.bundles.examples import (
    BINARY,
    NORMED,
    NOW,
    QUADRATIC,
    SURVIVAL,
    Released,
    draft_of,
    forge,
    manifest_of,
    parts_of,
    released,
    trust_of,
    write_example,
)

PLANS = pytest.mark.parametrize(
    "plan", [BINARY, NORMED, QUADRATIC, SURVIVAL], ids=["linear", "normed", "quadratic", "cox"]
)


def bundle_of(tmp_path: Path, key: bytes, made: Released, tier: Literal[2, 3] = 2) -> VerifiedBundle:
    path = write_example(tmp_path / "x.fedmap", key, tier, made=made).path
    return verify_bundle(path, trust_of(key), NOW)


def same_buffers(one: Buffers, other: Buffers) -> bool:
    names = ("mean", "variance", "count")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in names)


@PLANS
def test_prior_has_the_bits_of_the_blob_it_came_from(tmp_path: Path, key: bytes, plan: StudyPlan) -> None:
    made, network = released(plan), model_of(plan).network
    blob = encode_prior(network, plan.prior, PriorFile(made.prior, made.scaler))
    stored = decode_prior(network, plan.prior, blob)
    bundle = bundle_of(tmp_path, key, Released(plan, stored.prior, stored.scaler, made.rule))
    prior, shared = load_prior(bundle), load_shared(bundle)
    again = encode_prior(network, plan.prior, PriorFile(prior, shared.scaler))
    assert again == blob


@PLANS
def test_shared_model_is_the_global_model_of_either_tier(tmp_path: Path, key: bytes, plan: StudyPlan) -> None:
    made = released(plan)
    for tier in (2, 3):
        shared = load_shared(bundle_of(tmp_path, key, made, 2 if tier == 2 else 3))
        assert shared.plan == plan
        assert shared.model == model_of(plan)
        assert torch.equal(shared.parameters.theta, made.prior.mu)
        assert same_buffers(shared.parameters.buffers, made.prior.buffers)
        assert torch.equal(shared.scaler.mean, made.scaler.mean)
        assert torch.equal(shared.scaler.deviation, made.scaler.deviation)


def test_threshold_and_baseline_are_exact(tmp_path: Path, key: bytes) -> None:
    assert load_shared(bundle_of(tmp_path, key, released())).rule == released().rule
    survival = released(SURVIVAL)
    found = load_shared(bundle_of(tmp_path, key, survival)).rule.baseline
    assert found is not None
    assert survival.rule.baseline is not None
    assert found.grid == survival.rule.baseline.grid
    assert torch.equal(found.cumulative, survival.rule.baseline.cumulative)


def test_fine_tuning_with_a_tier_3_bundle_is_refused_with_the_name_of_the_right_one(
    tmp_path: Path, key: bytes
) -> None:
    with pytest.raises(StateError, match="tier-3") as refused:
        load_prior(bundle_of(tmp_path, key, released(), 3))
    assert "tiny-t2" in refused.value.hint


def test_value_that_is_not_finite_is_refused_although_it_is_signed(tmp_path: Path, key: bytes) -> None:
    made = released()
    draft = draft_of(made)
    parts = parts_of(made, draft)
    parts[MU] = parts[MU][:-4] + struct.pack("<f", math.nan)
    path = forge(tmp_path / "x.fedmap", manifest_of(draft, parts).to_json(), parts, key)
    bundle = verify_bundle(path, trust_of(key), NOW)
    assert len(bundle.part(MU)) == len(parts[MU])
    with pytest.raises(ModelError, match="not finite"):
        load_shared(bundle)
    with pytest.raises(ModelError, match="not finite"):
        load_prior(bundle)
