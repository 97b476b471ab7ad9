"""The gate: models and weights that do not fit the plan or the cohort are refused; honest ones pass."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor

from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.settings import WeightingRule
from fedmap.errors import RejectedError
from fedmap.study.tensors.parameter_files import encode_parameters, encode_theta
from fedmap_aggregator.gate.updates import CheckedAnswer
from tests.aggregator import small_study as made
from tests.aggregator.at_the_gate import (
    BINARY,
    checked,
    fit,
    refused,
    score,
)
from tests.aggregator.small_study import Small


def test_a_fit_passes_with_its_norm_and_weight() -> None:
    theta = made.parameters(BINARY).theta
    checked = fit(loss=0.5, validation_loss=0.6, epochs=3, scores=[score()])
    assert checked.status == "accepted"
    assert checked.norm == pytest.approx(float(theta.norm()), rel=1e-6)


def test_a_site_without_events_abstains_without_tensors() -> None:
    assert fit(tensors=b"", log_omega=None) == CheckedAnswer("abstained")


def test_an_initial_model_passes_with_its_norm() -> None:
    data = made.theta_bytes(BINARY)
    message = made.answer(BINARY, made.task("initialise"), data)
    message.initial_model.SetInParent()
    passed = checked(BINARY, "initialise", message, data)
    assert passed.norm == pytest.approx(float(BINARY.model.network.initialise(1).norm()), rel=1e-6)


# --- tensors


def _changed(change: Callable[[dict[str, Tensor]], None], data: bytes | None = None) -> bytes:
    tensors: dict[str, Tensor] = load(made.fit_bytes(BINARY) if data is None else data)
    change(tensors)
    changed: bytes = save(tensors)
    return changed


def _put(name: str, value: float) -> Callable[[dict[str, Tensor]], None]:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[name].view(-1)[-1] = value

    return change


def _rename(name: str, other: str) -> Callable[[dict[str, Tensor]], None]:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[other] = tensors.pop(name)

    return change


def _cast(name: str, change_of: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], None]:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[name] = change_of(tensors[name])

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_put("trunk.0.weight", math.nan), "trunk.0.weight holds a value that is not finite"),
        (_put("trunk.0.bias", math.inf), "not finite"),
        (_put("buffers.mean", math.nan), "not finite"),
        (_put("buffers.variance", -1.0), "buffers.variance is negative"),
        (_put("buffers.count", -1), "buffers.count is negative"),
        (_rename("trunk.0.bias", "trunk.9.bias"), "lacks 'trunk.0.bias' and adds 'trunk.9.bias'"),
        (_rename("buffers.mean", "buffers.middle"), "buffers.mean"),
        (_cast("trunk.0.weight", lambda t: t.T.contiguous()), "not of shape"),
        (_cast("trunk.0.weight", lambda t: t.flatten()), "not of shape"),
        (_cast("trunk.0.bias", lambda t: t.view(torch.int32)), "not of type F32"),
    ],
)
def test_parameters_that_do_not_fit_the_model_are_refused_by_name(
    change: Callable[[dict[str, Tensor]], None], reason: str
) -> None:
    with refused(reason):
        fit(_changed(change))


def test_parameters_of_double_precision_are_refused() -> None:
    with refused("bytes|not of type F32"):
        fit(_changed(lambda tensors: tensors.update({n: t.double() for n, t in tensors.items()})))


def test_two_tensors_with_swapped_names_are_refused() -> None:
    def swap(tensors: dict[str, Tensor]) -> None:
        one, other = "trunk.0.weight", "trunk.4.weight"
        tensors[one], tensors[other] = tensors[other], tensors[one]

    with refused("not of shape"):
        fit(_changed(swap))


def test_an_initial_model_with_statistics_is_refused() -> None:
    data = made.fit_bytes(BINARY)
    message = made.answer(BINARY, made.task("initialise"), data)
    message.initial_model.SetInParent()
    with refused("adds"):
        checked(BINARY, "initialise", message, data)


@given(st.data())
def test_bytes_that_were_changed_anywhere_are_refused_or_still_a_sound_update(data: st.DataObject) -> None:
    """The digest is checked before; whatever passes the gate must be usable by itself."""
    good = made.fit_bytes(BINARY)
    at, value = data.draw(st.integers(0, len(good) - 1)), data.draw(st.integers(0, 255))
    changed = good[:at] + bytes([value]) + good[at + 1 :]
    with suppress(RejectedError):
        checked = fit(changed)
        assert checked.norm is not None
        assert math.isfinite(checked.norm)


@given(st.binary(min_size=1, max_size=300))
def test_bytes_that_are_no_tensors_are_refused(noise: bytes) -> None:
    size = len(made.fit_bytes(BINARY))
    with refused("safetensors file"):
        fit((noise * size)[:size])


def test_tensors_cut_off_on_their_way_are_refused() -> None:
    good = made.fit_bytes(BINARY)
    message = made.answer(BINARY, made.task("fit"), good)
    message.fit.log_omega = -1.0
    for left in (1, 8, 100, len(good) - 1):
        with refused("safetensors file|number of bytes"):
            checked(BINARY, "fit", message, good[:left])


def test_a_header_that_claims_to_be_endless_is_refused() -> None:
    good = made.fit_bytes(BINARY)
    with refused("no safetensors file"):
        fit(struct.pack("<Q", 2**63) + good[8:])


# --- norm


def _scaled(factor: float, study: Small = BINARY) -> tuple[bytes, float]:
    own = made.parameters(study)
    theta = own.theta * factor
    return encode_parameters(study.model.network, SiteParameters(theta, own.buffers)), float(theta.norm())


def test_an_absurd_norm_is_refused_in_the_first_round() -> None:
    data, norm = _scaled(1e6)
    with refused("norm"):
        fit(data)
    with refused("norm"):
        fit(data, cohort_norm=0.01)
    assert fit(data, cohort_norm=norm / 19).status == "accepted"


@given(st.floats(0.05, 1e6))
def test_the_norm_is_held_against_the_cohort_of_the_last_round(times: float) -> None:
    data, norm = _scaled(3.0)
    if times < 20:
        assert fit(data, round_number=2, cohort_norm=norm / times).status == "accepted"
        return
    with refused("norm is over 20 times that of the cohort"):
        fit(data, round_number=2, cohort_norm=norm / times * 0.999)


def test_a_small_first_model_leaves_room_to_grow() -> None:
    """‖μ⁰‖ near zero must not shut out everybody in round 1."""
    data, norm = _scaled(1.0)
    assert norm < 20
    assert fit(data, round_number=1, cohort_norm=1e-9).status == "accepted"


def test_an_absurd_first_model_is_refused() -> None:
    data = encode_theta(BINARY.model.network, BINARY.model.network.initialise(1) * 1e6)
    message = made.answer(BINARY, made.task("initialise"), data)
    message.initial_model.SetInParent()
    with refused("norm"):
        checked(BINARY, "initialise", message, data)


# --- log ω


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_log_omega_that_is_not_finite_is_refused(bad: float) -> None:
    with refused("not a finite number"):
        fit(log_omega=bad)


@pytest.mark.parametrize("bad", [1e308, -1e308])
def test_a_log_omega_of_1e308_is_refused(bad: float) -> None:
    with refused("beyond"):
        fit(log_omega=bad)


@given(st.sampled_from(["per_sample", "literal", "reference"]), st.floats(-1e9, 1e9))
def test_a_log_omega_above_zero_is_refused_under_a_likelihood(rule: WeightingRule, value: float) -> None:
    study = made.small(weighting=rule)
    if value <= 1e-6:
        assert fit(study=study, log_omega=value).status == "accepted"
        return
    with refused(f"weighting {rule}"):
        fit(study=study, log_omega=value)


@pytest.mark.parametrize("value", [-0.1, math.log(1e9) + 0.1, 1e6])
def test_a_row_count_that_no_site_has_is_refused_as_a_weight(value: float) -> None:
    study = made.small(weighting="sample_count")
    assert fit(study=study, log_omega=math.log(5000)).status == "accepted"
    with refused("weighting sample_count"):
        fit(study=study, log_omega=value)


def test_parameters_without_a_weight_are_refused() -> None:
    with refused("come together"):
        fit(log_omega=None)


def test_a_weight_without_parameters_is_refused() -> None:
    with refused("come together"):
        fit(tensors=b"", log_omega=-1.0)


def test_a_loss_that_is_not_finite_is_refused() -> None:
    with refused("loss"):
        fit(loss=math.nan)
    with refused("loss"):
        fit(validation_loss=math.inf)


def test_more_epochs_than_the_plan_are_refused() -> None:
    with refused("epochs"):
        fit(epochs=11)
