"""T2: a model of one's own, whether it helped, and what lies on disk afterwards."""

from __future__ import annotations

import json
import re
import shutil
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from fedmap.algorithm.fit.values import LocalFit
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.bundles.loading import load_prior
from fedmap.bundles.verification import VerifiedBundle
from fedmap.data.loading import load_site
from fedmap.data.table.site_dataset import scale_dataset
from fedmap.errors import (
    ConflictError,
    DataError,
    IncompatibleError,
    IntegrityError,
    NotFoundError,
    StateError,
)
from fedmap.metrics import Metric
from fedmap.scoring.evaluation import Scoring, outputs, probabilities
from fedmap.study.models import model_of
from fedmap.study.personalisation import fine_tune
from fedmap_site.personalise.comparison import Figure, compare, signed, too_few
from fedmap_site.personalise.fine_tuning import Personalised, personalise
from fedmap_site.personalise.model import MODEL, PARAMETERS, REPORT, REPORT_PAGE, load_personal, read_record
from fedmap_site.personalise.report import counts, write_results
from fedmap_site.predict.table import PredictOptions, predict_file
from tests.site_agent.tier_bundles import IDENTIFIER, Kind, Study, patients, trained, write_table

NOW = int(time.time() * 1000)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("studies")


@cache
def personalised(
    home: Path,
    kind: Kind = "binary",
    *,
    rows: int = 600,
    turned: bool = False,
    seed: int | None = None,
    scaling: str = "pooled",
) -> Personalised:
    """Each kind of run once: most tests look at the same one."""
    made = trained(home, kind, False, scaling)
    data = write_table(home / f"clinic-{rows}-{turned}.csv", patients(rows, 21, turned=turned))
    return personalise(bundle_of(home, made), data, "clinic", seed)


def bundle_of(home: Path, made: Study) -> VerifiedBundle:
    folder = home / made.plan.digest
    folder.mkdir(exist_ok=True)
    return made.verified(made.bundle(folder, 2))


def written(home: Path, folder: Path, done: Personalised) -> Path:
    made = trained(home, done.shared.plan.task.kind, False, done.shared.plan.scaling.mode)
    write_results(done, bundle_of(home, made), folder / "model", NOW, "0.1.0")
    return folder / "model"


def test_the_fit_is_the_simulators_fine_tuning_to_the_bit(home: Path) -> None:
    made, done = trained(home), personalised(home)
    prior = load_prior(bundle_of(home, made))
    loaded = load_site(made.plan, "clinic", home / "clinic-600-False.csv", 2)
    data = scale_dataset(made.plan, loaded, made.scaler)
    fit = fine_tune(made.plan, model_of(made.plan), prior, data, made.terms.seed)
    assert isinstance(fit, LocalFit)
    assert torch.equal(done.fit.theta, fit.theta)
    assert done.fit.epochs < made.plan.training.fine_tune_epochs, "early stopping did not act"
    other = personalised(home, seed=9)
    assert not torch.equal(done.fit.theta, other.fit.theta)


@pytest.mark.parametrize("kind", ["binary", "cox", "multiclass"])
def test_a_site_where_all_is_turned_round_is_told_that_fine_tuning_helped(home: Path, kind: Kind) -> None:
    done = personalised(home, kind, turned=True)
    comparison = done.comparison
    assert comparison.outcome == "helped"
    assert comparison.advice == "Use the personal model."
    main = next(one for one in comparison.metrics if one.metric == done.shared.plan.task.metric)
    assert main.before is not None
    assert main.after is not None
    assert main.difference is not None
    assert main.difference.value == pytest.approx(main.after.value - main.before.value)
    for figure in (main.before, main.after, main.difference):
        assert figure.low is not None
        assert figure.high is not None
        assert figure.low < figure.value < figure.high


def test_a_site_like_the_others_is_told_to_stay_with_the_shared_model(home: Path) -> None:
    done = personalised(home)
    assert done.comparison.outcome == "no_difference"
    assert "the interval includes 0" in done.comparison.verdict
    assert done.comparison.verdict.endswith("Stay with the shared model.")


def test_a_personal_model_that_is_worse_is_called_worse(home: Path) -> None:
    """The two models change places."""
    done = personalised(home, turned=True)
    turned = compare(done.personal, done.shared, done.data.test, done.data.train, 1)
    assert turned.outcome == "worse"
    assert turned.verdict.startswith("Fine-tuning made it worse: AUROC")
    assert turned.advice == "Stay with the shared model."


def test_the_figures_are_those_of_the_evaluation(home: Path) -> None:
    done = personalised(home)
    for ready, place in ((done.shared, "before"), (done.personal, "after")):
        rows = (done.data.test, done.data.train)
        results = Scoring(ready.plan, ready.model, ready.parameters, ready.rule, *rows).measure()
        for result, compared in zip(results, done.comparison.metrics, strict=True):
            assert isinstance(result, Metric)
            figure: Figure = getattr(compared, place)
            assert (compared.metric, figure.value) == (result.name, result.value)
    assert sum(one.rows for one in done.comparison.before_curve) == len(done.data.test)


def test_few_held_out_rows_give_no_verdict(home: Path) -> None:
    done = personalised(home, rows=70)
    assert done.comparison.outcome == "cannot_tell"
    assert "fewer than 30 held-out rows" in done.comparison.verdict
    assert "Stay with the shared model" in done.comparison.verdict


def test_few_events_give_no_verdict_either(home: Path) -> None:
    done = personalised(home)
    test = done.data.test
    four = torch.zeros_like(test.target)
    four[:4] = 1
    assert (
        too_few(done.shared.plan, replace(test, target=four)) == "fewer than 5 held-out rows of one outcome"
    )
    one_class = replace(test, target=torch.zeros_like(test.target))
    assert compare(done.shared, done.personal, one_class, done.data.train, 1).outcome == "cannot_tell"


def test_a_tier_three_bundle_cannot_be_fine_tuned(home: Path, tmp_path: Path) -> None:
    made = trained(home)
    bundle = made.verified(made.bundle(tmp_path, 3))
    with pytest.raises(StateError, match="clinic-t2"):
        personalise(bundle, tmp_path / "not-even-there.csv", "clinic", None)


def test_a_file_that_does_not_fit_the_plan_is_refused_with_all_its_faults(home: Path, tmp_path: Path) -> None:
    made = trained(home)
    bundle = made.verified(made.bundle(tmp_path, 2))
    people = patients(200, 3)
    data = write_table(tmp_path / "clinic.csv", people, chol=people["chol"] * 10, event=None)
    with pytest.raises(DataError) as caught:
        personalise(bundle, data, "clinic", None)
    assert caught.value.problems[0] == "event: the column is missing"
    assert re.fullmatch(r"chol: \d+ of 200 values lie outside 1 to 15 mmol/l: check the unit",
                        caught.value.problems[1])  # fmt: skip


def test_a_block_with_other_drugs_than_the_federations_is_refused(home: Path, tmp_path: Path) -> None:
    made = trained(home, "binary", True)
    bundle = made.verified(made.bundle(tmp_path, 2))
    people = patients(200, 3)
    data = write_table(tmp_path / "clinic.csv", people, drug_c=None, drug_x=people["drug_c"])
    with pytest.raises(DataError, match=r"1 of 3 columns are missing \(drug_c\)"):
        personalise(bundle, data, "clinic", None)


def test_a_written_model_predicts_what_it_predicted_in_memory(home: Path, tmp_path: Path) -> None:
    made, done = trained(home), personalised(home, turned=True)
    ready = load_personal(written(home, tmp_path, done))
    assert ready.note == ""
    new = write_table(tmp_path / "new.csv", patients(150, 77, turned=True))
    out = tmp_path / "out.csv"
    predict_file(ready, new, out, PredictOptions(check_shift=False), lambda _done: None)
    found = [float(line.split(",")[1]) for line in out.read_text().splitlines()[1:]]
    rows = made.scaler.apply(load_site(made.plan, "new", new, 3).test.features)
    fitted = SiteParameters(done.fit.theta, done.fit.buffers)
    wanted = probabilities(ready.model, outputs(ready.model, fitted, rows)).numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-6, rtol=0)
    assert ready.rule == done.personal.rule


def test_a_plan_that_scales_by_the_sites_own_rows_keeps_the_sites_scaler(home: Path, tmp_path: Path) -> None:
    made, done = trained(home, "binary", False, "local"), personalised(home, scaling="local")
    ready = load_personal(written(home, tmp_path, done))
    assert not ready.scales_by_own_rows
    assert not torch.equal(ready.scaler.mean, made.scaler.mean)
    assert torch.equal(ready.scaler.mean, done.personal.scaler.mean)


def test_a_model_that_did_not_help_says_so_whenever_it_is_used(home: Path, tmp_path: Path) -> None:
    ready = load_personal(written(home, tmp_path, personalised(home)))
    assert ready.note == "its report says to stay with the shared model: predict with --bundle clinic-t2-1"


def test_report_and_model_hold_no_patient_and_no_small_count(home: Path, tmp_path: Path) -> None:
    folder = written(home, tmp_path, personalised(home))
    assert sorted(path.name for path in folder.iterdir()) == sorted([MODEL, PARAMETERS, REPORT, REPORT_PAGE])
    for path in folder.iterdir():
        assert IDENTIFIER.encode() not in path.read_bytes()
        assert path.stat().st_mode & 0o077 == 0
    report = json.loads((folder / REPORT).read_bytes())
    assert report["outcome"] == "no_difference"
    assert report["rows"]["held-out rows"] == "180"
    assert report["metrics"][0]["before"]["low"] < report["metrics"][0]["before"]["value"]
    assert report["shift"]["verdict"] == "predict"
    few = personalised(home, rows=36)
    assert any(value == "fewer than 5" for value in dict(counts(few.shared.plan, few.data)).values())


def test_the_page_stands_alone_and_says_the_verdict_first(home: Path, tmp_path: Path) -> None:
    folder = written(home, tmp_path, personalised(home, "cox"))
    page = (folder / REPORT_PAGE).read_text()
    assert "<script" not in page
    assert not re.search(r'(src|href)="', page)
    assert page.count("<svg") == 2
    assert page.index("No clear difference") < page.index("C-index") < page.index("Calibration</h2>")
    assert "A clinic&#39;s risk" in page


def test_nothing_is_ever_replaced_and_nothing_half_written_stays(home: Path, tmp_path: Path) -> None:
    done = personalised(home)
    folder = written(home, tmp_path, done)
    before = (folder / MODEL).read_bytes()
    with pytest.raises(ConflictError):
        written(home, tmp_path, done)
    assert (folder / MODEL).read_bytes() == before
    assert not list(tmp_path.glob(".part-*"))


@pytest.mark.parametrize("name", [MODEL, PARAMETERS])
def test_a_changed_or_missing_file_is_refused(home: Path, tmp_path: Path, name: str) -> None:
    folder = written(home, tmp_path, personalised(home))
    path = folder / name
    data = path.read_bytes()
    path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    with pytest.raises(IntegrityError):
        load_personal(folder)
    path.write_bytes(data.replace(b'"format": 1,', b'"format": 2,'))
    if name == MODEL:
        with pytest.raises(IncompatibleError):
            read_record(folder)
        shutil.rmtree(folder)
        with pytest.raises(NotFoundError):
            load_personal(folder)


def test_differences_are_written_with_their_sign() -> None:
    assert signed(Figure(0.0312, -0.0021, 0.0644)) == "+0.031 (95 % interval −0.002 to +0.064)"
    assert signed(Figure(-0.0001)) == "0.000"
