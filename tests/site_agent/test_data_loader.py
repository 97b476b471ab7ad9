"""The door: policy, floors, and a file that stays the same for a whole study."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedmap.errors import DataError, RejectedError
from fedmap_site.data.loader import DataLoader, check_data, check_dataset
from fedmap_site.policy import Floors, SitePolicy, floors_of
from tests.site_agent.stages import IDENTIFIER, Bench, smaller, terms_of, write_site


def test_rows_are_loaded_once_and_the_file_is_remembered(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.dataset() is bench.dataset()
    record = bench.state.data_record("toy")
    assert record is not None
    assert record.name == "north.csv"


def test_a_file_changed_in_mid_study_is_refused_with_a_hint(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.dataset()
    write_site(bench.file, 300, 9)
    with pytest.raises(DataError, match="begun with") as caught:
        bench.dataset()
    assert "leave the study" in caught.value.hint
    with pytest.raises(DataError, match="begun with"):
        Bench(tmp_path).dataset()


def test_a_file_put_back_as_it_was_is_taken_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.dataset()
    text = bench.file.read_bytes()
    write_site(bench.file, 300, 9)
    with pytest.raises(DataError):
        bench.dataset()
    bench.file.write_bytes(text)
    bench.dataset()


def test_a_study_without_a_file_says_where_to_name_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with pytest.raises(DataError, match="no file is configured"):
        bench.loader.load(bench.terms, None)
    with pytest.raises(DataError, match="cannot be opened"):
        bench.loader.load(bench.terms, tmp_path / "gone.csv")


def test_a_study_that_the_policy_forbids_never_opens_the_file(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    loader = DataLoader("north", bench.state, SitePolicy(max_rounds=1))
    with pytest.raises(RejectedError):
        loader.load(bench.terms, tmp_path / "gone.csv")


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        (SitePolicy(min_rows=500), "fewer than 500 rows"),
        (SitePolicy(min_events=290), "fewer than 290 positive rows"),
    ],
)
def test_too_few_rows_or_events_for_the_policy_are_refused_without_their_count(
    tmp_path: Path, policy: SitePolicy, named: str
) -> None:
    bench = Bench(tmp_path, policy=policy)
    with pytest.raises(DataError, match=named):
        bench.dataset()
    assert bench.state.data_record("toy") is None


def test_fewer_rows_than_a_cell_never_take_part(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    tiny = smaller(smaller(bench.dataset(), "train", 4), "validation", 0)
    with pytest.raises(DataError, match="fewer than 5 rows"):
        check_dataset(bench.terms.plan, tiny, Floors(1, 0, 5))


def test_inputs_that_are_not_the_plans_are_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    data = bench.dataset()
    other = replace(data, layout=replace(data.layout, scaled=(True, True, True)))
    with pytest.raises(DataError, match="inputs"):
        check_dataset(bench.terms.plan, other, floors_of(bench.terms.plan, bench.policy))


def test_a_planted_identifier_is_in_no_error(tmp_path: Path) -> None:
    path = tmp_path / "north.csv"
    write_site(path, 100, 1)
    text = (
        path.read_text().replace(f"{IDENTIFIER}-7,", f"{IDENTIFIER}-8,").replace(",yes,", f",{IDENTIFIER},")
    )
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        Bench(tmp_path).dataset()
    assert caught.value.problems
    assert IDENTIFIER not in str(caught.value)


def test_check_data_counts_and_never_shows_a_row(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    report = check_data(bench.terms.plan, "north", bench.file, bench.policy)
    assert report.usable
    counts = {line.name: line.value for line in report.counts}
    assert counts["inputs of the model"] == "3"
    assert int(counts["training rows"]) + int(counts["validation rows"]) + int(counts["test rows"]) == 300
    assert IDENTIFIER not in str(report)
    assert bench.state.data_record("toy") is None


def test_check_data_shows_small_cells_as_such(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    write_site(bench.file, 200, 3, share=0.02)
    report = check_data(bench.terms.plan, "north", bench.file, SitePolicy(min_events=0))
    counts = {line.name: line.value for line in report.counts}
    assert counts["test positive rows"] in ("0", "fewer than 10")


def test_check_data_lists_every_problem(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.file.write_text(bench.file.read_text().replace("patient,a,b,smoking", "patient,a,c,smoked"))
    report = check_data(terms_of().plan, "north", bench.file, bench.policy)
    assert not report.usable
    assert len(report.problems) == 2
    strict = check_data(terms_of().plan, "north", tmp_path / "gone.csv", bench.policy)
    assert not strict.usable
