"""The commands of tiers 2 and 3 as a clinic runs them: real processes, real files, no configuration."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fedmap.bundles.withdrawals import Withdrawal, Withdrawals, write_withdrawals
from fedmap_site.bundles.store import BundleStore
from fedmap_site.cli import main as cli
from tests.site_agent.tier_bundles import IDENTIFIER, fedmap_site, patients, trained, write_table


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("studies")


class Ended:
    """What a command printed, and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


def run(
    arguments: Sequence[object], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Ended:
    """The same entry point in this process, for the many small cases."""
    monkeypatch.setattr(sys, "argv", ["fedmap-site", *map(str, arguments)])
    try:
        cli.main()
        code: object = 0
    except SystemExit as ended:
        code = ended.code
    out, err = capfd.readouterr()
    return Ended(int(str(code or 0)), out, err)


def test_a_clinic_goes_from_the_file_and_a_fingerprint_to_predictions(home: Path, tmp_path: Path) -> None:
    made = trained(home)
    bundle = made.bundle(tmp_path, 3)
    write_table(tmp_path / "clinic.csv", patients(300, 41))
    told = fedmap_site(
        *("predict", "--bundle", bundle.name, "--fingerprint", made.fingerprint),
        *("--data", "clinic.csv", "--out", "out.csv", "--id", "patient"),
        folder=tmp_path,
    ).done("look like those of the federation", "Wrote out.csv: predictions of clinic-t3-1 for all 300 rows.")
    assert IDENTIFIER not in told.stdout + told.stderr
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0] == "patient,probability,class"
    assert len(lines) == 301
    assert json.loads((tmp_path / "out.csv.shift.json").read_text())["verdict"] == "predict"


def test_a_site_fine_tunes_and_predicts_with_its_own_model(home: Path, tmp_path: Path) -> None:
    made = trained(home)
    bundle = made.bundle(tmp_path, 2)
    write_table(tmp_path / "clinic.csv", patients(600, 42, turned=True))
    told = fedmap_site(
        *("personalise", "--bundle", bundle.name, "--fingerprint", made.fingerprint, "--data", "clinic.csv"),
        "--json",
        folder=tmp_path,
    ).done()
    form = json.loads(told.stdout)
    assert form["outcome"] == "helped"
    folder = tmp_path / form["folder"]
    assert folder.name == "clinic-t2-1-personal"
    assert sorted(path.name for path in folder.iterdir()) == [
        "model.json", "model.safetensors", "report.html", "report.json",
    ]  # fmt: skip
    predicted = fedmap_site(
        *("predict", "--model", folder.name, "--data", "clinic.csv", "--out", "out.parquet", "--json"),
        folder=tmp_path,
    ).done()
    answer = json.loads(predicted.stdout)
    assert (answer["personal"], answer["rows"], answer["skipped"]) == (True, 600, 0)
    assert answer["shift"]["verdict"] == "predict"


def test_an_error_is_a_sentence_a_hint_and_code_one(home: Path, tmp_path: Path) -> None:
    made = trained(home)
    bundle = made.bundle(tmp_path, 3)
    people = patients(60, 43)
    write_table(tmp_path / "clinic.csv", people, sbp=np.where(people["age"] > 60, 1350, people["sbp"]))
    ended = fedmap_site(
        *("predict", "--bundle", bundle.name, "--fingerprint", made.fingerprint),
        *("--data", "clinic.csv", "--out", "out.csv"),
        folder=tmp_path,
    ).refused(1, "error (data)", "values lie outside 60 to 260 mmHg: check the unit", "--skip-bad-rows")
    assert "1350" not in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "out.csv").exists()


def test_a_tier_three_bundle_is_refused_by_personalise_before_anything_is_read(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trained(home)
    bundle = made.bundle(tmp_path, 3)
    (tmp_path / "empty.csv").touch()
    arguments = ["personalise", "--bundle", bundle, "--fingerprint", made.fingerprint, "--store", tmp_path]
    ended = run(
        [*arguments, "--data", tmp_path / "empty.csv", "--out", tmp_path / "model"], capfd, monkeypatch
    )
    assert ended.code == 1
    assert "clinic-t2" in ended.err
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("given", [[], ["--bundle", "clinic-t3", "--model", "folder"]])
def test_either_a_bundle_or_a_model_must_be_given(
    tmp_path: Path, given: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_table(tmp_path / "clinic.csv", patients(3, 1))
    ended = run(["check-shift", "--data", data, *given], capfd, monkeypatch)
    assert ended.code == 2
    assert "either --bundle or --model" in ended.err


def test_check_shift_tells_the_figures_and_the_advice(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trained(home)
    options = ["--fingerprint", made.fingerprint, "--store", tmp_path, "--bundle", made.bundle(tmp_path, 3)]
    data = write_table(tmp_path / "clinic.csv", patients(500, 32, older=12))
    ended = run(["check-shift", "--data", data, *options], capfd, monkeypatch)
    assert ended.code == 0
    assert "Wasserstein (SD)" in ended.out
    assert "ask the federation for the tier-2 bundle" in ended.out
    ended = run(["check-shift", "--data", data, *options, "--json"], capfd, monkeypatch)
    form = json.loads(ended.out)
    assert (form["verdict"], form["rows"]) == ("fine_tune", 500)
    assert [one["name"] for one in form["inputs"] if one["alarm"]] == ["age"]


def test_a_personal_model_ends_when_its_bundle_is_withdrawn(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trained(home)
    store = tmp_path / "store"
    data = write_table(tmp_path / "clinic.csv", patients(120, 41))
    bundle, model = made.bundle(tmp_path, 2), tmp_path / "model"
    options = ["--data", data, "--store", store]
    given = ["--bundle", bundle, "--fingerprint", made.fingerprint, "--out", model]
    ended = run(["personalise", *options, *given], capfd, monkeypatch)
    assert ended.code == 0, ended.err
    assert str(model / "report.html") in ended.out
    predict = ["predict", *options, "--model", model, "--out", tmp_path / "out.csv"]
    ended = run(predict, capfd, monkeypatch)
    assert ended.code == 0, ended.err
    assert "stay with the shared model" in ended.err
    BundleStore(store).pin_key(made.fingerprint, "on paper", 1)
    withdrawn = Withdrawal(name="clinic-t2", version=1, reason="a wrong unit", at_unix_ms=5)
    listed = Withdrawals(serial=1, issued_unix_ms=5, entries=(withdrawn,))
    BundleStore(store).accept_withdrawals(write_withdrawals(listed, made.release_key))
    ended = run(predict, capfd, monkeypatch)
    assert ended.code == 1
    assert "was withdrawn" in ended.err
    assert "a wrong unit" in ended.err


def test_help_answers_without_the_heavy_libraries() -> None:
    script = (
        "import sys, fedmap_site.cli.main\n"
        "print([m for m in ('torch', 'pandas', 'pyarrow', 'starlette', 'grpc') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
