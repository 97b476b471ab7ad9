"""The verdict on a site: natural differences pass, a shift is named, a wrong unit stops the model."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmap.errors import ModelError
from fedmap.shift.check import InputShift, ShiftAccumulator, ShiftReport, check_shift
from fedmap.shift.joint import BUDGET, budget_by_visibility
from fedmap.shift.pooling import pool_reference
from fedmap.shift.reference import Reference
from fedmap.shift.sample import MomentSums
from fedmap.shift.told.terms import reference_terms
from tests.common.shift.made_up_federation import FLOOR, NAMES, SCALED, draw_site


def shift_of(report: ShiftReport, name: str) -> InputShift:
    (found,) = [one for one in report.inputs if one.name == name]
    return found


def test_sites_like_the_federation_raise_few_alarms(reference: Reference) -> None:
    alarms = [seed for seed in range(200) if check_shift(reference, draw_site(seed)).verdict != "predict"]
    assert len(alarms) <= 10, alarms


def test_a_site_like_the_federation_is_told_so_in_words(reference: Reference) -> None:
    report = check_shift(reference, draw_site(3))
    assert report.verdict == "predict"
    assert report.sentences[0] == "300 row(s) compared with 45,000 rows of 30 sites."
    assert "look like those of the federation" in report.sentences[1]
    assert not any(one.alarm for one in report.inputs)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("input_number", [0, 1, 2, 3])
def test_a_shift_of_one_input_alone_is_found_and_named(
    reference: Reference, input_number: int, sign: int
) -> None:
    for seed in range(20):
        rows = draw_site(seed)
        rows[:, input_number] += sign
        report = check_shift(reference, rows)
        assert report.verdict == "fine_tune"
        assert [one.name for one in report.inputs if one.alarm] == [NAMES[input_number]]
        assert any(line.startswith(f"{NAMES[input_number]}: ") for line in report.sentences)


def test_figures_of_a_plain_shift_are_right(reference: Reference) -> None:
    rows = draw_site(3, 4000, spread=0.0)
    rows[:, 2] += 1.5
    one = shift_of(check_shift(reference, rows), "lipids")
    deviation = reference.inputs[2].deviation
    assert one.standardised_difference * deviation == pytest.approx(1.5, abs=0.15)
    assert one.wasserstein * deviation == pytest.approx(1.5, abs=0.15)
    assert one.psi > 1
    assert one.deviation_ratio == pytest.approx(1.0, abs=0.06)
    assert one.given_others == pytest.approx(1.5 / deviation, abs=0.3)


def test_a_unit_wrong_by_a_factor_of_ten_stops_the_model_and_is_named_first(reference: Reference) -> None:
    rows = draw_site(4)
    rows[:, 1] = (rows[:, 1] + 8) * 10 - 8  # a column with mean 8 and deviation 1, times ten
    rows[:, 0] += 1
    report = check_shift(reference, rows)
    assert report.verdict == "do_not_use"
    assert report.sentences[2].startswith("pressure: ")
    assert "unit" in report.sentences[-1]
    assert shift_of(report, "pressure").gross
    assert not shift_of(report, "age").gross


def test_a_column_filled_with_one_value_is_found(reference: Reference) -> None:
    rows = draw_site(5)
    rows[:, 3] = 0.0
    report = check_shift(reference, rows)
    assert report.verdict == "do_not_use"
    assert shift_of(report, "sugar").reasons[0] == "it is the same in all rows"


def test_values_in_a_wrong_unit_in_a_part_of_the_rows_are_found(reference: Reference) -> None:
    rows = draw_site(6)
    rows[:30, 2] += 15
    report = check_shift(reference, rows)
    assert report.verdict != "predict"
    assert shift_of(report, "lipids").outside == pytest.approx(0.1, abs=0.01)


def test_another_spread_with_the_same_mean_is_a_shift(reference: Reference) -> None:
    rows = draw_site(7)
    rows[:, 2] = rows[:, 2].mean() + 1.8 * (rows[:, 2] - rows[:, 2].mean())
    report = check_shift(reference, rows)
    assert report.verdict == "fine_tune"
    assert "times that at the federation's sites" in " ".join(shift_of(report, "lipids").reasons)


def test_another_shape_with_the_same_mean_and_spread_is_a_shift(reference: Reference) -> None:
    rows = draw_site(8, 2000)
    signs = torch.where(torch.arange(2000) % 2 == 0, 1.0, -1.0)
    rows[:, 2] = signs[torch.randperm(2000, generator=torch.Generator().manual_seed(0))]  # two values only
    assert check_shift(reference, rows).verdict == "fine_tune"


def test_a_clinic_of_women_only_may_fine_tune(reference: Reference) -> None:
    rows = draw_site(9)
    rows[:, 4] = 0.0
    report = check_shift(reference, rows)
    assert report.verdict == "fine_tune"
    assert shift_of(report, "sex=M").reasons == ("0 % of the rows have it, 50 % at the federation's sites",)


def test_inputs_that_move_as_nature_moves_them_are_no_shift_until_they_go_too_far(
    reference: Reference,
) -> None:
    older = torch.tensor([1.0, 0.6, 0.0, 0.5, 0.0])  # what age takes with it
    assert check_shift(reference, draw_site(10, spread=0.0) + 0.4 * older).verdict == "predict"
    assert check_shift(reference, draw_site(10, spread=0.0) + 2.0 * older).verdict == "fine_tune"


def test_a_difference_of_no_matter_is_no_alarm_however_many_rows_prove_it(reference: Reference) -> None:
    centre = torch.tensor([one.centre for one in reference.inputs]).float()
    rows = draw_site(11, 200_000, spread=0.0)
    rows = rows - rows.mean(0) + centre
    rows[:, 4] = draw_site(11, 200_000)[:, 4]
    rows[:, 0] += 0.1
    assert check_shift(reference, rows).verdict == "predict"


@pytest.mark.parametrize("rows", [1, 5, 29])
def test_few_rows_are_not_judged_but_may_be_predicted(reference: Reference, rows: int) -> None:
    shifted = draw_site(12, rows)
    shifted[:, 0] += 2
    report = check_shift(reference, shifted)
    assert report.verdict == "predict"
    assert report.sentences[1].startswith("Too few rows")
    assert not any(one.alarm for one in report.inputs)
    assert report.joint is not None
    assert not report.joint.alarm


@pytest.mark.parametrize("rows", [1, 29])
def test_a_wrong_unit_is_caught_even_in_few_rows(reference: Reference, rows: int) -> None:
    shifted = draw_site(13, rows)
    shifted[:, 0] = 90.0
    report = check_shift(reference, shifted)
    assert report.verdict == "do_not_use"
    (named,) = [line for line in report.sentences if line.startswith("age: ")]
    assert "standard deviations higher" in named


def test_no_rows_give_a_report_and_no_alarm(reference: Reference) -> None:
    report = check_shift(reference, torch.zeros(0, 5))
    assert (report.verdict, report.rows, report.inputs, report.joint) == ("predict", 0, (), None)
    assert report.sentences[1].startswith("Too few rows")


@given(st.lists(st.integers(1, 299), max_size=5))
def test_blocks_of_any_size_give_the_same_report(reference: Reference, cuts: list[int]) -> None:
    rows = draw_site(14)
    whole = check_shift(reference, rows)
    accumulator = ShiftAccumulator(reference)
    edges = [0, *sorted(cuts), 300]
    for i in range(len(edges) - 1):
        accumulator.add(rows[edges[i] : edges[i + 1]])
    pieces = accumulator.report()
    assert pieces.sentences == whole.sentences
    assert pieces.joint is not None
    assert whole.joint is not None
    assert pieces.joint.distance == pytest.approx(whole.joint.distance)
    for one, other in zip(pieces.inputs, whole.inputs, strict=True):
        assert one.psi == other.psi
        assert one.standardised_difference == pytest.approx(other.standardised_difference)
        assert one.deviation_ratio == pytest.approx(other.deviation_ratio)


def test_a_report_is_plain_json_without_any_row(reference: Reference) -> None:
    form = json.loads(json.dumps(asdict(check_shift(reference, draw_site(15))), allow_nan=False))
    assert set(form) == {"verdict", "rows", "inputs", "joint", "sentences"}


def test_rows_of_another_width_or_not_finite_are_refused(reference: Reference) -> None:
    accumulator = ShiftAccumulator(reference)
    with pytest.raises(ModelError, match="5 inputs"):
        accumulator.add(torch.zeros(3, 4))
    with pytest.raises(ModelError, match="not finite"):
        accumulator.add(torch.full((3, 5), float("inf")))


def test_many_inputs_are_judged_one_by_one_and_folded_together() -> None:
    inputs = 100
    names, flags = tuple(f"x{j}" for j in range(inputs)), (True,) * inputs

    def site(seed: int, rows: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return 0.1 * torch.randn(inputs, generator=generator) + torch.randn(rows, inputs, generator=generator)

    terms = {f"s{seed}": reference_terms(site(100 + seed, 500), flags, FLOOR) for seed in range(20)}
    wide = pool_reference(terms, names)
    assert check_shift(wide, site(1, 300)).verdict == "predict"
    shifted = site(1, 300)
    shifted[:, 77] += 1
    report = check_shift(wide, shifted)
    assert report.verdict == "fine_tune"
    assert [one.name for one in report.inputs if one.alarm] == ["x77"]
    assert shift_of(report, "x77").given_others is None


def test_a_rare_drug_in_a_few_rows_is_no_shift() -> None:
    def site(seed: int, rows: int, users: int) -> torch.Tensor:
        drug = torch.zeros(rows, 1)
        drug[:users] = 12.0  # a rare drug, scaled
        return torch.cat([draw_site(seed, rows), drug], 1)

    terms = {
        f"s{seed}": reference_terms(site(seed, 1500, 12), (*SCALED, True), FLOOR) for seed in range(100, 110)
    }
    sparse = pool_reference(terms, (*NAMES, "drug"))
    assert sparse.inputs[-1].sparse
    for users in (0, 1, 2):
        assert check_shift(sparse, site(1, 60, users)).verdict == "predict"
    assert check_shift(sparse, site(1, 5, 1)).verdict == "predict"


def test_rows_of_one_patient_do_not_count_as_many() -> None:
    patients = torch.randn(60, 1, generator=torch.Generator().manual_seed(0)).double()
    sums = MomentSums(torch.zeros(1).double(), torch.ones(1).double())
    sums.add(patients.repeat_interleave(5, dim=0))
    assert 3.5 < float(sums.moments().design[0]) < 7  # five rows each
    alone = MomentSums(torch.zeros(1).double(), torch.ones(1).double())
    alone.add(torch.randn(3000, 1, generator=torch.Generator().manual_seed(1)).double())
    assert float(alone.moments().design[0]) < 1.3


def test_moments_far_from_the_centre_are_those_of_the_rows() -> None:
    rows = 1e4 + torch.randn(5000, 1, generator=torch.Generator().manual_seed(2)).double()
    sums = MomentSums(torch.zeros(1).double(), torch.ones(1).double())
    sums.add(rows)
    found = sums.moments()
    assert float(found.mean[0]) == pytest.approx(float(rows.mean()))
    assert float(found.variance[0]) == pytest.approx(float(rows.var()), rel=1e-4)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=40), st.floats(0.001, 0.05))
def test_the_budget_is_spent_exactly_whatever_can_be_seen(visibility: list[float], budget: float) -> None:
    divided = budget_by_visibility(np.array(visibility), budget)
    assert divided.sum() == pytest.approx(budget, rel=1e-3)
    assert (divided > 0).all()


def test_all_questions_together_have_at_most_five_per_cent() -> None:
    assert sum(BUDGET.values()) <= 0.05
