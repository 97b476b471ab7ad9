"""The shift check around prediction: what is said, what is written, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedmap.errors import DataError, StateError
from fedmap_site.predict.rows import ReadyModel, shared_model
from fedmap_site.predict.shift_report import advice, shift_form, shift_lines, shift_table
from fedmap_site.predict.table import PredictOptions, check_file, predict_file
from tests.site_agent.tier_bundles import Tier, patients, trained, write_table


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("studies")


def ready_of(home: Path, tier: Tier = 3) -> ReadyModel:
    made = trained(home)
    return shared_model(made.verified(made.bundle(home, tier)))


def quiet(_done: float) -> None:
    """Nobody watches."""


def test_rows_like_the_federations_are_predicted_and_the_report_lies_beside(
    home: Path, tmp_path: Path
) -> None:
    data = write_table(tmp_path / "clinic.csv", patients(400, 31))
    done = predict_file(ready_of(home), data, tmp_path / "out.csv", PredictOptions(), quiet)
    assert done.shift is not None
    assert done.shift.verdict == "predict"
    assert done.shift_file == tmp_path / "out.csv.shift.json"
    report = json.loads(done.shift_file.read_bytes())
    assert (report["verdict"], report["rows"], report["model"]) == ("predict", 400, "clinic-t3-1")
    assert len(report["inputs"]) == 6
    assert {"standardised_difference", "psi", "wasserstein"} <= set(report["inputs"][0])


def test_a_column_far_off_but_inside_its_range_stops_the_predictions(home: Path, tmp_path: Path) -> None:
    people = patients(400, 31)
    data = write_table(tmp_path / "clinic.csv", people, chol=np.maximum(people["chol"] / 3, 1.0))
    ready, out = ready_of(home), tmp_path / "out.csv"
    with pytest.raises(StateError, match="chol") as caught:
        predict_file(ready, data, out, PredictOptions(), quiet)
    assert "--despite-shift" in caught.value.hint
    assert not out.exists()
    assert not (tmp_path / "out.csv.shift.json").exists()
    done = predict_file(ready, data, out, PredictOptions(despite_shift=True), quiet)
    assert done.shift is not None
    assert done.shift.verdict == "do_not_use"
    assert json.loads((tmp_path / "out.csv.shift.json").read_bytes())["verdict"] == "do_not_use"
    assert out.exists()
    done = predict_file(ready, data, tmp_path / "unchecked.csv", PredictOptions(check_shift=False), quiet)
    assert (done.shift, done.shift_file) == (None, None)


def test_the_verdict_does_not_depend_on_the_form_of_the_file_or_on_extra_columns(
    home: Path, tmp_path: Path
) -> None:
    people = patients(500, 32, older=12)
    ready = ready_of(home)
    one, _ = check_file(ready, write_table(tmp_path / "a.csv", people), quiet)
    other = dict(reversed(people.items()))
    two, notes = check_file(ready, write_table(tmp_path / "b.parquet", other, event=None), quiet)
    assert one.verdict == two.verdict == "fine_tune"
    assert [i.name for i in one.inputs if i.alarm] == [i.name for i in two.inputs if i.alarm]
    assert any("another order" in note for note in notes)


def test_the_advice_fits_what_the_site_has(home: Path, tmp_path: Path) -> None:
    data = write_table(tmp_path / "clinic.csv", patients(500, 32, older=12))
    ready = ready_of(home)
    report, _ = check_file(ready, data, quiet)
    assert "ask the federation for the tier-2 bundle" in advice(report, ready)
    assert "fedmap-site personalise" in advice(report, ready_of(home, 2))
    assert "was fine-tuned here" in advice(report, replace(ready, personal=True))
    assert shift_lines(report, ready)[-1] == advice(report, ready)
    heading, rows = shift_table(report, ready)
    assert heading[0] == "input"
    assert rows[0][0] == "age"
    assert rows[0][-1] == "different"
    assert len(rows) == 6


def test_few_rows_are_predicted_and_nothing_of_them_is_shown(home: Path, tmp_path: Path) -> None:
    ready = ready_of(home)
    data = write_table(tmp_path / "clinic.csv", patients(1, 31))
    done = predict_file(ready, data, tmp_path / "out.csv", PredictOptions(), quiet)
    assert done.shift is not None
    form = shift_form(done.shift, ready)
    assert (form["verdict"], form["inputs"], form["joint"]) == ("predict", [], None)
    assert "Too few rows" in " ".join(done.shift.sentences)
    assert shift_table(done.shift, ready)[1] == [("all", "not shown: too few rows")]


def test_bad_rows_are_left_out_of_the_comparison_and_counted(home: Path, tmp_path: Path) -> None:
    people = patients(300, 33)
    people["sbp"][:40] *= 10
    report, notes = check_file(ready_of(home), write_table(tmp_path / "clinic.csv", people), quiet)
    assert report.rows == 260
    assert "40 of 300 rows were left out of the comparison" in notes
    people["sbp"][:] = 2000
    with pytest.raises(DataError, match="300 of 300 rows"):
        check_file(ready_of(home), write_table(tmp_path / "clinic.csv", people), quiet)


def test_a_bundle_without_statistics_predicts_and_says_that_nothing_was_compared(
    home: Path, tmp_path: Path
) -> None:
    ready = replace(ready_of(home), reference=None)
    data = write_table(tmp_path / "clinic.csv", patients(50, 31))
    done = predict_file(ready, data, tmp_path / "out.csv", PredictOptions(), quiet)
    assert any("not compared with the federation" in note for note in done.notes)
    with pytest.raises(StateError):
        check_file(ready, data, quiet)
