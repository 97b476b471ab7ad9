"""T3: what comes out for each kind of study, and every way in which a file can be wrong."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pa_parquet
import pytest
import torch

from fedmap.data.loading import load_site
from fedmap.errors import ConflictError, DataError, ModelError, StateError, StorageError
from fedmap.scoring.evaluation import outputs, probabilities
from fedmap_site.predict.rows import Predictor, ReadyModel, shared_model
from fedmap_site.predict.table import FileFormat, PredictionRun, PredictOptions, predict_file
from tests.site_agent.tier_bundles import IDENTIFIER, ROOT, Kind, patients, trained, write_table

QUIET = PredictOptions(check_shift=False)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("studies")


def ready_of(
    home: Path, kind: Kind = "binary", *, block: bool = False, scaling: str = "pooled"
) -> ReadyModel:
    made = trained(home, kind, block, scaling)
    folder = home / f"{kind}-{block}-{scaling}"
    folder.mkdir(exist_ok=True)
    return shared_model(made.verified(made.bundle(folder, 3)))


def run(ready: ReadyModel, data: Path, out: Path, options: PredictOptions = QUIET) -> PredictionRun:
    return predict_file(ready, data, out, options, lambda _done: None)


def table_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def expected_raw(ready: ReadyModel, data: Path) -> torch.Tensor:
    """By the ways of training and evaluation, not of prediction."""
    loaded = load_site(ready.plan, "clinic", data, 3).test.features
    return outputs(ready.model, ready.parameters, ready.scaler.apply(loaded))


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_probability_and_class_are_the_models_own(home: Path, tmp_path: Path, suffix: str) -> None:
    ready = ready_of(home, block=True)
    data = write_table(tmp_path / f"clinic{suffix}", patients(400, 1))
    done = run(ready, data, tmp_path / "out.csv")
    rows = table_of(tmp_path / "out.csv")
    assert done.rows == len(rows) == 400
    assert list(rows[0]) == ["row", "probability", "class"]
    assert [int(row["row"]) for row in rows] == list(range(1, 401))
    found = np.array([float(row["probability"]) for row in rows])
    wanted = probabilities(ready.model, expected_raw(ready, data)).numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-6, rtol=0)
    assert ready.rule.threshold is not None
    assert {row["class"] for row in rows} == {"well", "ill"}
    assert [row["class"] == "ill" for row in rows] == (wanted >= ready.rule.threshold.value).tolist()


def test_a_study_of_several_classes_gets_a_probability_for_each(home: Path, tmp_path: Path) -> None:
    ready = ready_of(home, "multiclass")
    data = write_table(tmp_path / "clinic.csv", patients(300, 1))
    run(ready, data, tmp_path / "out.csv")
    rows = table_of(tmp_path / "out.csv")
    assert list(rows[0]) == ["row", "probability_a", "probability_b", "probability_c", "class"]
    wanted = probabilities(ready.model, expected_raw(ready, data)).numpy()
    found = np.array([[float(row[f"probability_{name}"]) for name in "abc"] for row in rows])
    np.testing.assert_allclose(found, wanted, atol=1e-6, rtol=0)
    assert [row["class"] for row in rows] == ["abc"[at] for at in wanted.argmax(1)]


def test_survival_gets_the_risk_at_the_plans_horizon(home: Path, tmp_path: Path) -> None:
    ready = ready_of(home, "cox")
    data = write_table(tmp_path / "clinic.csv", patients(300, 1))
    run(ready, data, tmp_path / "out.csv")
    rows = table_of(tmp_path / "out.csv")
    assert list(rows[0]) == ["row", "risk", "log_hazard"]
    eta = expected_raw(ready, data)[:, 0]
    assert ready.rule.baseline is not None
    risk = ready.rule.baseline.risk(eta)[:, -1].numpy()
    np.testing.assert_allclose([float(row["risk"]) for row in rows], risk, atol=1e-6, rtol=0)
    np.testing.assert_allclose([float(row["log_hazard"]) for row in rows], eta.numpy(), atol=1e-6, rtol=0)
    assert risk.min() > 0.02
    assert risk.max() < 1.0


@pytest.mark.parametrize(("wider", "value", "words"), [(1, 0.0, "inputs"), (0, torch.inf, "not finite")])
def test_rows_of_another_width_and_outputs_that_are_no_numbers_are_refused(
    home: Path, wider: int, value: float, words: str
) -> None:
    ready = ready_of(home)
    with pytest.raises(ModelError, match=words):
        Predictor(ready).predict(torch.full((3, ready.model.network.inputs + wider), value))


def test_neither_the_label_nor_the_order_of_columns_matters(home: Path, tmp_path: Path) -> None:
    ready = ready_of(home)
    people = patients(100, 2)
    run(ready, write_table(tmp_path / "a.csv", people), tmp_path / "out-a.csv")
    turned = dict(reversed(people.items()))
    bare = write_table(tmp_path / "b.csv", turned, event=None, grade=None, years=None, happened=None)
    done = run(ready, bare, tmp_path / "out-b.csv")
    assert (tmp_path / "out-a.csv").read_bytes() == (tmp_path / "out-b.csv").read_bytes()
    assert any("another order" in note for note in done.notes)


def test_identifiers_come_out_only_where_they_are_asked_for(home: Path, tmp_path: Path) -> None:
    ready = ready_of(home)
    data = write_table(tmp_path / "clinic.csv", patients(60, 2))
    run(ready, data, tmp_path / "out.csv")
    assert IDENTIFIER not in (tmp_path / "out.csv").read_text()
    options = PredictOptions(form="parquet", identifier="patient", check_shift=False)
    run(ready, data, tmp_path / "out.parquet", options)
    table = pa_parquet.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["patient", "probability", "class"]
    assert table["patient"].to_pylist() == [f"{IDENTIFIER}-{row}" for row in range(60)]
    changed = write_table(tmp_path / "named.csv", patients(9, 2) | {"class": np.arange(9)})
    with pytest.raises(ConflictError):
        run(ready, changed, tmp_path / "no.csv", PredictOptions(identifier="class", check_shift=False))


def test_bad_rows_are_an_error_with_counts_and_nothing_is_written(home: Path, tmp_path: Path) -> None:
    ready = ready_of(home)
    people = patients(200, 3)
    people["sbp"][:5] *= 10  # in another unit
    people["crp"][4:7] = np.nan
    smoking = people["smoking"].astype(object)
    smoking[9] = f"{IDENTIFIER}?"
    data = write_table(tmp_path / "clinic.csv", people, smoking=list(smoking))
    out = tmp_path / "out.csv"
    out.write_text("of yesterday\n")
    with pytest.raises(DataError) as caught:
        run(ready, data, out)
    assert caught.value.problems == (
        "8 of 200 rows cannot be predicted",
        "sbp: 5 of 200 values lie outside 60 to 260 mmHg: check the unit",
        "smoking: 1 of 200 values are not among the categories no, former, current",
        "crp: 3 of 200 values are missing",
    )
    assert IDENTIFIER not in str(caught.value)
    assert out.read_text() == "of yesterday\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clinic.csv", "out.csv"]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_bad_rows_may_be_skipped_and_say_why(home: Path, tmp_path: Path, suffix: str) -> None:
    ready = ready_of(home)
    people = patients(120, 3)
    data = write_table(tmp_path / "good.csv", people)
    run(ready, data, tmp_path / "good-out.csv")
    people["age"][[0, 7, 119]] = 200
    people["crp"][7] = np.nan
    data = write_table(tmp_path / "clinic.csv", people)
    form: FileFormat = "parquet" if suffix == ".parquet" else "csv"
    options = PredictOptions(form=form, skip_bad_rows=True, check_shift=False)
    done = run(ready, data, tmp_path / f"out{suffix}", options)
    assert (done.rows, done.skipped) == (120, 3)
    if suffix == ".parquet":
        rows = pa_parquet.read_table(tmp_path / "out.parquet").to_pylist()
        rows = [{name: "" if cell is None else str(cell) for name, cell in row.items()} for row in rows]
    else:
        rows = table_of(tmp_path / "out.csv")
    assert rows[0] == {"row": "1", "probability": "", "class": "", "reason": "age: outside the range"}
    assert rows[7]["reason"] == "age: outside the range; crp: missing"
    good = table_of(tmp_path / "good-out.csv")
    for at in set(range(120)) - {0, 7, 119}:
        # In float32, and how many rows are computed together decides the last digit.
        assert float(rows[at]["probability"]) == pytest.approx(float(good[at]["probability"]), rel=1e-6)
        assert (rows[at]["class"], rows[at]["reason"]) == (good[at]["class"], "")


def test_a_file_without_one_good_row_is_an_error_even_if_rows_may_be_skipped(
    home: Path, tmp_path: Path
) -> None:
    people = patients(30, 3)
    data = write_table(tmp_path / "clinic.csv", people, age=people["age"] / 10)
    with pytest.raises(DataError, match="30 of 30 rows cannot be predicted"):
        run(ready_of(home), data, tmp_path / "out.csv", PredictOptions(skip_bad_rows=True, check_shift=False))
    assert not (tmp_path / "out.csv").exists()


def test_missing_columns_are_named_before_anything_is_read(home: Path, tmp_path: Path) -> None:
    data = write_table(tmp_path / "clinic.csv", patients(30, 3), age=None, smoking=None)
    with pytest.raises(DataError) as caught:
        run(ready_of(home), data, tmp_path / "out.csv")
    assert caught.value.problems == ("age: the column is missing", "smoking: the column is missing")


def test_the_data_file_is_never_written_over(home: Path, tmp_path: Path) -> None:
    data = write_table(tmp_path / "clinic.csv", patients(30, 3))
    (tmp_path / "link.csv").symlink_to(data)
    for out in (data, tmp_path / "link.csv"):
        with pytest.raises(ConflictError):
            run(ready_of(home), data, out)


def test_a_folder_that_is_not_there_is_a_plain_error(home: Path, tmp_path: Path) -> None:
    data = write_table(tmp_path / "clinic.csv", patients(30, 3))
    with pytest.raises(StorageError):
        run(ready_of(home), data, tmp_path / "nowhere" / "out.csv")


def test_a_plan_that_scales_by_the_sites_own_rows_does_so(home: Path, tmp_path: Path) -> None:
    """Doubling the spread of a column then changes nothing, as its own statistics take it out again."""
    ready = ready_of(home, scaling="local")
    people = patients(300, 5)
    people["age"] = np.clip(people["age"], 40, 80)
    run(ready, write_table(tmp_path / "a.csv", people), tmp_path / "out-a.csv")
    wide = write_table(tmp_path / "b.csv", people, age=60 + (people["age"] - 60) * 1.5)
    run(ready, wide, tmp_path / "out-b.csv")
    a, b = (
        np.array([float(row["probability"]) for row in table_of(tmp_path / name)])
        for name in ("out-a.csv", "out-b.csv")
    )
    np.testing.assert_allclose(a, b, atol=1e-5)
    assert a.std() > 0.1


def test_an_expired_model_is_refused(home: Path) -> None:
    ready = ready_of(home)
    ready.refuse_if_expired(ready.expires_unix_ms - 1)
    with pytest.raises(StateError):
        ready.refuse_if_expired(ready.expires_unix_ms)


_PEAKS = """
import resource, sys, time
from pathlib import Path
from fedmap.bundles.verification import Trust, verify_bundle
from fedmap_site.predict.table import PredictOptions, predict_file
from fedmap_site.predict.rows import shared_model
bundle, fingerprint, out, *files = sys.argv[1:]
verified = verify_bundle(Path(bundle), Trust(frozenset([fingerprint])), int(time.time() * 1000))
ready = shared_model(verified)
for data in files:
    predict_file(ready, Path(data), Path(out), PredictOptions(check_shift=False), lambda _: None)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_memory_does_not_grow_with_the_file(home: Path, tmp_path: Path) -> None:
    """Read at once the large file takes twice as much more as is allowed here."""
    made = trained(home)
    small = write_table(tmp_path / "small.csv", patients(20_000, 1))
    header, _, body = small.read_bytes().partition(b"\n")
    large = tmp_path / "large.csv"
    large.write_bytes(header + b"\n" + body * 20)
    bundle, out = made.bundle(tmp_path, 3), tmp_path / "out.csv"
    command = [sys.executable, "-c", _PEAKS, bundle, made.fingerprint, out, small, large]
    done = subprocess.run(
        list(map(str, command)), cwd=ROOT, check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    before, after = map(int, done.stdout.split())
    with out.open() as lines:
        assert sum(1 for _ in lines) == 400_001
    assert after - before < 60, f"{after - before} MiB more"
