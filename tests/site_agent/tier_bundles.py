"""Bundles for tests of tiers 2 and 3: small studies with a trained μ, a reference, and rows that fit them."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
import torch
from numpy.typing import NDArray

from fedmap.algorithm.fit.fitting import fit_sites
from fedmap.algorithm.fit.values import LocalFit, SiteTask
from fedmap.algorithm.pooling.statistics import Scaler, feature_statistics, make_scaler
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.prior.values import Prior, initial_prior
from fedmap.algorithm.settings import FedmapSettings
from fedmap.bundles.manifest import Draft, Lineage
from fedmap.bundles.verification import Trust, VerifiedBundle, verify_bundle
from fedmap.bundles.writing import prior_parts, readable_parts, rule_values, scaler_values, write_bundle
from fedmap.data.loading import load_site
from fedmap.data.table.site_dataset import SiteDataset, scale_dataset
from fedmap.scoring.decision_rules import DecisionRule
from fedmap.scoring.evaluation import local_rule
from fedmap.shift.pooling import pool_reference
from fedmap.shift.told.terms import reference_terms
from fedmap.study.models import model_of
from fedmap.study.plan.reading import parse_plan
from fedmap.study.plan.study_plan import StudyPlan
from fedmap.study.terms import StudyTerms
from fedmap.trust.signing import fingerprint, new_release_key, public_key_of
from tests import plans
from tests.forked_programs import run_forked
from tests.ran import Ran

ROOT = Path(__file__).resolve().parents[2]
IDENTIFIER = "NHS-943-476-5919"
"""Begins every patient's number; it must come out only where it was asked for."""
DAY_MS = 86_400_000
SITES = 6
Tier = Literal[2, 3]
Columns = dict[str, NDArray[Any]]

_FEATURES = (
    plans.number("age", unit="years", range=[18, 110]),
    plans.number("sbp", unit="mmHg", range=[60, 260]),
    plans.number("chol", unit="mmol/l", range=[1, 15], missing={"fill": 5.0}),
    plans.category("smoking", "no", "former", "current"),
    plans.number("crp", range=[0, 500], transform="log1p", missing="exclude"),
)
_TASKS = {
    "binary": plans.binary("event", ["well", "ill"], threshold={"rule": "youden"}),
    "multiclass": {
        "kind": "multiclass",
        "label": "grade",
        "classes": ["a", "b", "c"],
        "metric": "balanced_accuracy",
    },
    "cox": plans.cox("years", "happened", 5.0),
}
_BLOCK = plans.block("drug_", 3, range=[0, 50], scale=False)
Kind = Literal["binary", "multiclass", "cox"]


def study(kind: Kind = "binary", *, block: bool = False, scaling: str = "pooled") -> StudyPlan:
    text = plans.plan_text(
        "clinic",
        _TASKS[kind],
        *_FEATURES,
        *([_BLOCK] if block else []),
        study={"title": "A clinic's risk of an event", "intended_use": "Tests only. Not for patients."},
        split={"test": 0.3},
        model=plans.mlp(8, 6, dropout=0.1, batch_norm=True),
        training={"epochs": 12, "batch_size": 64, "learning_rate": 0.02, "fine_tune_epochs": 15},
        prior={"hidden": [6, 4]},
        scaling={"mode": scaling},
        limits={"min_rows": 20, "min_events": 2, "min_cell": 5},
    )
    return parse_plan(text, "clinic.toml")


def patients(rows: int, seed: int, *, older: float = 0.0, turned: bool = False) -> Columns:
    """Invented people. `older`: years more than elsewhere; `turned`: what raises risk elsewhere lowers it."""
    rng = np.random.default_rng(seed)
    age = np.clip(rng.normal(60 + older, 12, rows), 18, 110)
    sbp = np.clip(rng.normal(135, 18, rows), 60, 260)
    chol = np.clip(rng.normal(5.4, 1.0, rows), 1, 15)
    smoking = rng.choice(["no", "former", "current"], rows, p=[0.5, 0.3, 0.2])
    crp = np.clip(rng.lognormal(1.0, 0.8, rows), 0, 500)
    score = 0.09 * (age - 60) + 0.03 * (sbp - 135) + 0.9 * (smoking == "current")
    score = -score if turned else score
    ill = rng.random(rows) < 1 / (1 + np.exp(-(score - 0.8)))
    years = np.clip(rng.exponential(6 * np.exp(-0.6 * score)), 0.01, 6)
    return {
        "patient": np.array([f"{IDENTIFIER}-{row}" for row in range(rows)]),
        "age": age.round(1),
        "sbp": sbp.round(0),
        "chol": chol.round(2),
        "smoking": smoking,
        "crp": crp.round(2),
        **{f"drug_{letter}": rng.poisson(1.0, rows) for letter in "abc"},
        "event": np.where(ill, "ill", "well"),
        "grade": np.array(["a", "b", "c"])[np.digitize(score + rng.normal(0, 0.5, rows), [-0.5, 0.8])],
        "years": np.minimum(years, 5.0).round(3),
        "happened": ((years < 5.0) & (rng.random(rows) < 0.8)).astype(int),
    }


def write_table(path: Path, columns: Columns, **changed: Any) -> Path:
    """By the path's ending; `changed` replaces columns, None takes one out."""
    wanted = {name: values for name, values in {**columns, **changed}.items() if values is not None}
    table = pa.table({name: pa.array(values) for name, values in wanted.items()})
    if path.suffix == ".parquet":
        pa_parquet.write_table(table, path, row_group_size=100)
    else:
        pa_csv.write_csv(table, path, pa_csv.WriteOptions(quoting_style="needed"))
    return path


@dataclass(frozen=True, eq=False)
class Study:
    """What a federation would have released."""

    plan: StudyPlan
    terms: StudyTerms
    prior: Prior
    scaler: Scaler
    rule: DecisionRule
    data: SiteDataset  # scaled
    release_key: bytes

    @property
    def fingerprint(self) -> str:
        return fingerprint(public_key_of(self.release_key))

    def bundle(self, folder: Path, tier: Tier = 2, version: int = 1, **changes: Any) -> Path:
        """Writes a signed bundle, valid now."""
        draft = self.draft(tier, version, **changes)
        path = folder / f"{draft.name}-{draft.version}.fedmap"
        parts = prior_parts(self.plan, self.prior, tier) | readable_parts(draft)
        write_bundle(path, draft, parts, self.release_key)
        return path

    def verified(self, path: Path) -> VerifiedBundle:
        return verify_bundle(path, Trust(frozenset({self.fingerprint})), int(time.time() * 1000))

    def draft(self, tier: Tier, version: int, **changes: Any) -> Draft:
        threshold, baseline = rule_values(self.rule)
        now = int(time.time() * 1000)
        parts = torch.chunk(self.data.train.features, SITES)
        flags = self.data.layout.scaled
        terms = {f"site-{at}": reference_terms(rows, flags, 5) for at, rows in enumerate(parts)}
        fields: dict[str, Any] = {
            "name": f"clinic-t{tier}",
            "version": version,
            "study": "clinic",
            "title": self.plan.study.title,
            "intended_use": self.plan.study.intended_use,
            "tier": tier,
            "released_unix_ms": now - DAY_MS,
            "expires_unix_ms": now + 300 * DAY_MS,
            "software_version": "0.1.0",
            "terms_json": self.terms.to_json(),
            "terms_digest": self.terms.digest,
            "plan_digest": self.plan.digest,
            "model": self.plan.model.name,
            "inputs": self.data.layout.names,
            "lineage": Lineage(
                round=1, rounds=1, sites=SITES, prior_digest="ab" * 32, accepted_updates=SITES
            ),
            "scaler": scaler_values(self.scaler),
            "threshold": threshold,
            "baseline": baseline,
            "reference": pool_reference(terms, self.data.layout.names),
        }
        return Draft.model_validate(fields | changes)


@cache
def trained(
    folder: Path, kind: Kind = "binary", block: bool = False, scaling: str = "pooled", rows: int = 900
) -> Study:
    """A study whose μ was trained on invented people; made once for each folder and kind."""
    torch.set_num_threads(1)
    plan = study(kind, block=block, scaling=scaling)
    file = write_table(folder / f"federation-{kind}-{block}-{scaling}.csv", patients(rows, seed=7))
    loaded = load_site(plan, "federation", file, 1)
    own = torch.cat([loaded.train.features, loaded.validation.features])
    scaler = make_scaler(feature_statistics(own), loaded.layout.scaled)
    data = scale_dataset(plan, loaded, scaler)
    model = model_of(plan)
    start = initial_prior(model.network, plan.prior, model.network.initialise(3))
    settings = FedmapSettings(plan.prior, plan.training, plan.aggregation)
    task = SiteTask(start.mu, start.buffers, data.train, data.validation, 11)
    (fit,) = fit_sites(model, settings, start, [task], "autograd_likelihood", penalised=False)
    assert isinstance(fit, LocalFit)
    prior = replace(start, mu=fit.theta, buffers=fit.buffers)
    shared = SiteParameters(prior.mu, prior.buffers)
    rule = local_rule(plan, model, shared, data.train, data.validation)
    return Study(plan, StudyTerms.of_plan(plan), prior, scaler, rule, data, new_release_key())


def fedmap_site(*arguments: str | Path, folder: Path) -> Ran:
    """The real command in a process of its own, with `folder` as its home."""
    environment = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder / "data")}
    return run_forked("fedmap-site", [*map(str, arguments)], environment, folder)
