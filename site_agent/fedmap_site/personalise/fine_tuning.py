"""T2: a model of one's own from a released prior, with no communication, and whether it helped.

Steps: (1) the prior, which only a tier-2 bundle has; (2) the site's file against the plan; (3) its rows
against the federation's; (4) fine-tuning from μ under R(·; μ, ψ); (5) a decision rule from the site's own
validation rows; (6) both models on the held-out rows. What becomes of it on disk is `model` and
`report`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from fedmap.algorithm.fit.batched import OnEpoch
from fedmap.algorithm.fit.values import FailedFit, LocalFit
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.seeding import derive_seed
from fedmap.bundles.loading import load_prior
from fedmap.bundles.verification import VerifiedBundle
from fedmap.data.feature_rows import COLUMNS_HINT, feature_columns, missing_columns
from fedmap.data.loading import load_site
from fedmap.data.table.site_dataset import SiteDataset, scale_dataset, site_scaler
from fedmap.errors import DataError, TrainingError
from fedmap.scoring.decision_rules import DecisionRule
from fedmap.scoring.evaluation import local_rule
from fedmap.shift.check import ShiftReport, check_shift
from fedmap.study.personalisation import fine_tune
from fedmap_site.personalise.comparison import Comparison, compare
from fedmap_site.predict.rows import ReadyModel, shared_model

_T2 = 2
RuleFrom = Literal["site", "bundle"]


@dataclass(frozen=True, eq=False)
class Personalised:
    """A fine-tuned model and all that is known of it."""

    shared: ReadyModel
    personal: ReadyModel
    rule_from: RuleFrom
    data: SiteDataset  # scaled
    fit: LocalFit
    seed: int
    comparison: Comparison
    shift: ShiftReport | None  # None: the bundle has no reference


def personalise(
    bundle: VerifiedBundle, path: Path, site: str, seed: int | None, on_epoch: OnEpoch | None = None
) -> Personalised:
    """Fine-tune at one site. `seed` is the study's unless another is given."""
    prior = load_prior(bundle)  # (1)
    shared = shared_model(bundle)
    terms = bundle.terms()
    own_seed = terms.seed if seed is None else seed
    loaded = load_site(terms.plan, site, path, _T2)  # (2)
    _check_inputs(shared, loaded)
    data = scale_dataset(terms.plan, loaded, shared.scaler)
    shift = None
    if shared.reference is not None:  # (3)
        shift = check_shift(shared.reference, torch.cat([data.train.features, data.validation.features]))
    fit = fine_tune(terms.plan, shared.model, prior, data, own_seed, on_epoch)  # (4)
    if isinstance(fit, FailedFit):
        raise TrainingError(
            f"fine-tuning failed: {fit.reason}",
            hint="Check the ranges of the columns; with few rows, stay with the shared model.",
        )
    fitted = SiteParameters(fit.theta, fit.buffers)
    before = replace(shared, scaler=site_scaler(terms.plan, loaded, shared.scaler))
    rule, rule_from = _rule(before, fitted, data)  # (5)
    personal = replace(before, personal=True, parameters=fitted, rule=rule)
    drawn = derive_seed(own_seed, "held-out", site)
    comparison = compare(before, personal, data.test, data.train, drawn)  # (6)
    return Personalised(shared, personal, rule_from, data, fit, own_seed, comparison, shift)


def _check_inputs(shared: ReadyModel, data: SiteDataset) -> None:
    """Blocks of columns are known by their prefix only; here their names must be the bundle's too."""
    if data.layout.names == shared.inputs:
        return
    lost = [name for name in shared.inputs if name not in data.layout.names]
    problems = missing_columns(feature_columns(shared.plan, shared.inputs), lost)
    raise DataError(data.site, problems or ("the columns are not those of the bundle",), hint=COLUMNS_HINT)


def _rule(shared: ReadyModel, fitted: SiteParameters, data: SiteDataset) -> tuple[DecisionRule, RuleFrom]:
    """The site's own rule; the bundle's where the site's rows could not give one."""
    own = local_rule(shared.plan, shared.model, fitted, data.train, data.validation)
    if shared.plan.task.kind == "cox":
        return (shared.rule, "bundle") if own.baseline is None else (own, "site")
    no_answer = own.threshold is not None and own.threshold.note is not None
    return (shared.rule, "bundle") if no_answer or own == shared.rule else (own, "site")
