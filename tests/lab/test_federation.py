from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedmap.errors import DataError
from fedmap.study.plan.study_plan import StudyPlan
from fedmap_lab.federation.sites import load_federation
from tests.lab.conftest import MakeCohort, write_site

SITES = {"one": (1, 120), "two": (1, 90), "three": (2, 60), "four": (3, 30)}


def spoil(directory: Path, site: str, column: int, text: str) -> None:
    lines = (directory / f"{site}.csv").read_text().splitlines()
    cells = lines[1].split(",")
    cells[column] = text
    lines[1] = ",".join(cells)
    (directory / f"{site}.csv").write_text("\n".join(lines) + "\n")


def test_training_rows_of_t1_sites_are_standardised_together(
    binary_plan: StudyPlan, make_cohort: MakeCohort
) -> None:
    federation = load_federation(binary_plan, make_cohort(SITES))
    rows = torch.cat(
        [torch.cat([s.data.train.features, s.data.validation.features]) for s in federation.tier(1)]
    )
    assert torch.allclose(rows.mean(0), torch.zeros(3), atol=1e-5)
    assert torch.allclose(rows.std(0), torch.ones(3), atol=1e-5)


def test_local_scaling_standardises_each_site_by_itself(
    make_cohort: MakeCohort, binary_plan: StudyPlan
) -> None:
    plan = binary_plan.model_copy(
        update={"scaling": binary_plan.scaling.model_copy(update={"mode": "local"})}
    )
    for site in load_federation(plan, make_cohort(SITES)).sites:
        rows = torch.cat([site.data.train.features, site.data.validation.features])
        own = rows if len(rows) else site.data.test.features
        assert torch.allclose(own.mean(0), torch.zeros(3), atol=1e-5)


@pytest.mark.parametrize(
    ("column", "text", "named"),
    [(0, "nan", "a"), (1, "inf", "b"), (2, "4000", "c"), (3, "2", "sick"), (0, "much", "a")],
)
def test_a_site_with_a_bad_cell_is_excluded_by_name_and_the_others_go_on(
    binary_plan: StudyPlan, make_cohort: MakeCohort, column: int, text: str, named: str
) -> None:
    directory = make_cohort({**SITES, "bad": (1, 80)})
    spoil(directory, "bad", column, text)
    federation = load_federation(binary_plan, directory)
    assert [site.name for site in federation.sites] == ["four", "one", "three", "two"]
    (excluded,) = federation.excluded
    assert excluded.name == "bad"
    assert any(named in problem for problem in excluded.problems)


def test_negative_time_excludes_the_site(survival_plan: StudyPlan, make_cohort: MakeCohort) -> None:
    directory = make_cohort({**SITES, "bad": (1, 80)})
    spoil(directory, "bad", 4, "-1.0")
    (excluded,) = load_federation(survival_plan, directory).excluded
    assert "years" in " ".join(excluded.problems)


def test_an_empty_site_is_excluded(binary_plan: StudyPlan, make_cohort: MakeCohort) -> None:
    directory = make_cohort(SITES)
    (directory / "two.csv").write_text("a,b,c,sick,years\n")
    plan = binary_plan.model_copy(update={"rounds": binary_plan.rounds.model_copy(update={"quorum": 1})})
    (excluded,) = load_federation(plan, directory).excluded
    assert excluded.name == "two"


def test_too_few_usable_sites_for_the_quorum_is_an_error_that_names_them(
    binary_plan: StudyPlan, make_cohort: MakeCohort
) -> None:
    directory = make_cohort(SITES)
    spoil(directory, "two", 0, "nan")
    with pytest.raises(DataError, match="quorum is 2") as caught:
        load_federation(binary_plan, directory)
    assert any("two" in problem for problem in caught.value.problems)


def test_a_site_with_other_columns_is_excluded(binary_plan: StudyPlan, make_cohort: MakeCohort) -> None:
    directory = make_cohort({**SITES, "bad": (1, 80)})
    write_site(directory / "bad.csv", 80, 3)
    text = (directory / "bad.csv").read_text().replace("a,b,c", "a,b,d")
    (directory / "bad.csv").write_text(text)
    (excluded,) = load_federation(binary_plan, directory).excluded
    assert excluded.name == "bad"
