"""The federation's reference: as the pooled rows would give it, with an honest spread between sites."""

from __future__ import annotations

import pytest
import torch

from fedmap.errors import TrainingError
from fedmap.shift.pooled_histograms import stability_index
from fedmap.shift.pooling import pool_reference, shrink_covariance, shrink_variances, upper_factor
from fedmap.shift.reference import Reference
from fedmap.shift.told.terms import ReferenceTerms, reference_terms
from tests.common.shift.made_up_federation import FLOOR, NAMES, SCALED, draw_site


def terms_of(*seeds: int, rows: int = 400) -> dict[str, ReferenceTerms]:
    return {f"site_{seed}": reference_terms(draw_site(seed, rows), SCALED, FLOOR) for seed in seeds}


def test_mean_and_deviation_are_those_of_all_rows_together() -> None:
    together = torch.cat([draw_site(seed, 400) for seed in (1, 2, 3)]).double()
    pooled = pool_reference(terms_of(1, 2, 3), NAMES)
    assert pooled.rows == 1200
    for j, one in enumerate(pooled.inputs):
        assert one.mean == pytest.approx(float(together[:, j].mean()))
        assert one.deviation == pytest.approx(float(together[:, j].std()))
        assert sum(one.shares) == pytest.approx(1.0)
        assert len(one.shares) == len(one.edges) + 1


def test_the_order_in_which_sites_answer_changes_no_bit() -> None:
    terms = terms_of(3, 1, 2)
    assert pool_reference(terms, NAMES) == pool_reference(dict(sorted(terms.items())), NAMES)


def test_a_reference_survives_its_json(reference: Reference) -> None:
    assert Reference.model_validate_json(reference.model_dump_json()) == reference


def test_the_spread_between_many_sites_is_found(reference: Reference) -> None:
    age, sex = reference.inputs[0], reference.inputs[4]
    assert age.between == pytest.approx(0.12, rel=0.35)
    assert age.within == pytest.approx(1.0, rel=0.05)
    assert sex.indicator
    assert sex.sparse
    assert not age.sparse


def test_few_sites_that_happen_to_agree_are_not_taken_at_their_word() -> None:
    agreeing = pool_reference(terms_of(1, 1001, 2001, rows=1500), NAMES)
    alike = {f"site_{k}": reference_terms(draw_site(5, 1500), SCALED, FLOOR) for k in range(3)}
    assert agreeing.freedom == 4
    assert min(one.between for one in agreeing.inputs) > 0.05
    assert max(one.between for one in pool_reference(alike, NAMES).inputs) < 0.05  # nothing differs at all


def test_one_site_cannot_say_how_much_sites_differ() -> None:
    with pytest.raises(TrainingError, match="too few"):
        pool_reference(terms_of(1), NAMES)


def test_a_site_below_its_floor_does_not_count_as_a_site() -> None:
    tiny = reference_terms(draw_site(9, 5), SCALED, FLOOR)
    pooled = pool_reference({**terms_of(1, 2), "tiny": tiny}, NAMES)
    assert pooled == pool_reference(terms_of(1, 2), NAMES)
    with pytest.raises(TrainingError, match=r"1 site\(s\)"):
        pool_reference({**terms_of(1), "tiny": tiny}, NAMES)


def test_sites_of_different_plans_are_not_pooled() -> None:
    with pytest.raises(TrainingError, match="model's inputs"):
        pool_reference(terms_of(1, 2), NAMES[:-1])
    other = {"site_2": reference_terms(draw_site(2, 400), (True,) * 5, FLOOR)}
    with pytest.raises(TrainingError, match="scaled"):
        pool_reference({**terms_of(1), **other}, NAMES)


def test_an_input_that_never_varies_has_no_spread_and_breaks_nothing() -> None:
    rows = {f"s{seed}": torch.cat([draw_site(seed, 400), torch.ones(400, 1)], 1) for seed in (1, 2, 3)}
    terms = {name: reference_terms(own, (*SCALED, True), FLOOR) for name, own in rows.items()}
    constant = pool_reference(terms, (*NAMES, "constant")).inputs[-1]
    assert (constant.deviation, constant.within, constant.between) == (0.0, 0.0, 0.0)
    assert constant.outside > 0  # up to floor - 1 rows may have differed, untold


def test_only_constant_inputs_have_no_joint_reference() -> None:
    terms = {name: reference_terms(torch.zeros(50, 2), (True, True), FLOOR) for name in "ab"}
    assert pool_reference(terms, ("x", "y")).joint is None


def test_the_index_of_equal_shares_is_zero_and_an_empty_bin_among_few_rows_is_no_news() -> None:
    known = torch.tensor([0.5, 0.45, 0.05], dtype=torch.float64)
    assert stability_index(known, known, 100) == pytest.approx(0.0, abs=1e-12)
    empty = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    assert stability_index(empty, known, 20) < stability_index(empty, known, 100_000) / 2


def test_the_upper_limit_falls_towards_the_estimate_as_sites_come_in() -> None:
    factors = [upper_factor(freedom) for freedom in (1, 2, 4, 9, 19, 184)]
    assert factors == sorted(factors, reverse=True)
    assert factors[1] == pytest.approx(4.48, rel=0.02)  # 2 / χ²(0.2; 2)
    assert factors[-1] == pytest.approx(1.10, rel=0.02)


def test_with_many_sites_every_variance_speaks_for_itself() -> None:
    variances = torch.tensor([0.01, 0.2], dtype=torch.float64)
    assert torch.allclose(shrink_variances(variances, 500), variances, rtol=0.15)
    assert shrink_variances(variances, 3)[0] > 10 * variances[0]


def test_the_covariance_between_many_sites_is_recovered() -> None:
    generator = torch.Generator().manual_seed(0)
    true = torch.tensor([[0.10, 0.06, 0.0], [0.06, 0.08, 0.0], [0.0, 0.0, 0.02]], dtype=torch.float64)
    root = torch.linalg.cholesky(true)
    means = torch.randn(4000, 3, generator=generator, dtype=torch.float64) @ root.T
    everything = torch.eye(3, dtype=torch.float64)
    found = shrink_covariance(means, everything, torch.zeros(3, 3, dtype=torch.float64))
    assert torch.allclose(found, true, atol=0.006)
