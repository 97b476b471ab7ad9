"""What sites outside the federation do with its bundles, each by its own commands on this machine.

A T2 site is enrolled: it fetches over mutual TLS and fine-tunes. A T3 clinic has neither certificate nor
configuration: it gets a one-time link, a fingerprint on paper and a file of patients, and predicts. Outcomes
are needed here only to score what the clinic predicted; the clinic's own commands never see them.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedmap.data.loading import load_site
from fedmap.errors import StateError
from fedmap.metrics import Metric
from fedmap.metrics.classification import binary_scores
from fedmap.study.plan.study_plan import StudyPlan
from fedmap_lab.local.federation import LocalFederation, LocalSite, free_port
from fedmap_lab.local.study import Record, StudySeen

_DRAWS = 1000


class Figure(Record):
    """A value with its 95 % interval, where there is one."""

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.3f}"
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


class ComparedMetric(Record):
    metric: str
    before: Figure | None
    after: Figure | None
    difference: Figure | None


class ShiftSeen(Record):
    verdict: str


class PredictionSeen(Record):
    """A part of what `predict --json` prints."""

    rows: int
    shift: ShiftSeen | None


class PersonalReport(Record):
    """A part of the report that `personalise` writes."""

    metric: str
    outcome: str
    verdict: str
    metrics: tuple[ComparedMetric, ...]
    shift: ShiftSeen | None

    @property
    def main(self) -> ComparedMetric:
        """By the plan's own metric."""
        return next(one for one in self.metrics if one.metric == self.metric)


@dataclass(frozen=True)
class Released:
    """A bundle and the fingerprint that clinics get on paper."""

    name: str
    version: int
    fingerprint: str

    @property
    def reference(self) -> str:
        return f"{self.name}-{self.version}"


@dataclass(frozen=True)
class Predicted:
    """What a clinic's predictions turned out to be worth, once their outcomes are looked at."""

    rows: int
    shift: str  # the verdict of the shift check
    figure: Figure | None  # the plan's metric on all rows; None where it cannot be measured


@dataclass(frozen=True)
class TierResults:
    """One federation by its three tiers."""

    study: StudySeen
    fine_tuned: dict[str, PersonalReport]  # by T2 site
    predicted: dict[str, Predicted]  # by T3 site


def downloads_toml() -> str:
    """Turns the aggregator's HTTPS downloads on, on a free port of this machine."""
    return f'[downloads]\nlisten = "127.0.0.1:{free_port()}"\n'


def release(federation: LocalFederation, study: str, tier: int) -> Released:
    """The operator signs the study's last model."""
    printed = json.loads(federation.aggregator("bundle", "release", study, "--tier", str(tier), "--json"))
    bundle = printed["bundle"]
    return Released(str(bundle["name"]), int(bundle["version"]), str(printed["key_fingerprint"]))


def personalise(federation: LocalFederation, site: LocalSite, bundle: Released, out: Path) -> PersonalReport:
    """A T2 site enrols, fetches the bundle, and makes a model of its own in the folder `out`."""
    federation.join(site)
    federation.site(site.name, "bundle", "fetch", bundle.reference, "--install")
    out.parent.mkdir(parents=True, exist_ok=True)
    files = ["--data", str(site.data.resolve()), "--out", str(out.resolve())]
    federation.site(site.name, "personalise", "--bundle", bundle.name, "--site", site.name, *files)
    return PersonalReport.model_validate_json((out / "report.json").read_text(encoding="utf-8"))


def predict(
    federation: LocalFederation, plan: StudyPlan, site: LocalSite, bundle: Released, out: Path
) -> Predicted:
    """A T3 clinic downloads by link, checks the fingerprint, and predicts every row into the file `out`."""
    link = json.loads(federation.aggregator("bundle", "link", bundle.reference, "--json"))["url"]
    authority = federation.aggregator_folder / "state" / "pki" / "ca.pem"
    trusted = ["--ca", str(authority), "--fingerprint", bundle.fingerprint]
    federation.clinic(site.name, "bundle", "fetch", "--link", str(link), "--install", *trusted)
    out.parent.mkdir(parents=True, exist_ok=True)
    files = ["--data", str(site.data.resolve()), "--out", str(out.resolve())]
    options = ["--bundle", bundle.name, *files, "--skip-bad-rows", "--despite-shift", "--json"]
    return predicted(federation.clinic(site.name, "predict", *options), plan, site, out)


def predicted(printed: str, plan: StudyPlan, site: LocalSite, predictions: Path) -> Predicted:
    """What `predict --json` printed, and what its file of predictions turned out to be worth."""
    seen = PredictionSeen.model_validate_json(printed)
    figure = _score(plan, site, predictions)
    return Predicted(seen.rows, "" if seen.shift is None else seen.shift.verdict, figure)


def _score(plan: StudyPlan, site: LocalSite, predictions: Path) -> Figure | None:
    """The plan's metric of a binary task over all rows of the clinic, with a bootstrap interval."""
    if plan.task.kind != "binary":
        return None
    truth = load_site(plan, site.name, site.data, tier=3).test.target.numpy()
    risk, called = _read_predictions(predictions, plan)
    if len(risk) != len(truth):
        raise StateError(
            f"{len(risk)} predictions stand against {len(truth)} outcomes of {site.name}",
            hint="rows of this file cannot be predicted for other reasons than the study's rules: mend them",
        )
    cut = float(risk[called].min()) if called.any() else 1.0  # divides the rows as the shipped threshold does
    scores = binary_scores(risk, truth, cut)
    (result,) = scores.measure([plan.task.metric])
    if not isinstance(result, Metric):
        return None
    draws = scores.draws((result,), 0, _DRAWS)[result.name]
    low, high = (float(q) for q in np.nanpercentile(draws, [2.5, 97.5]))
    return Figure(value=result.value, low=low, high=high)


def _read_predictions(path: Path, plan: StudyPlan) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Of each row that has one: the probability, and whether the clinic was told to take it for positive."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["probability"]]
    positive = plan.task.classes[1] if plan.task.classes else "1"
    return (
        np.array([float(row["probability"]) for row in rows]),
        np.array([row["class"] == str(positive) for row in rows]),
    )
