"""Whether the parts of a bundle fit each other: terms, model, tables and tensors.

Asked of what is signed already, so a misfit is a fault of the release or another version of the software.
Values are not looked at; `loading` refuses what is not finite.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import get_args

from fedmap.algorithm.fit.values import Model
from fedmap.bundles.manifest import MU, PSI, UPDATE, Manifest
from fedmap.errors import IncompatibleError
from fedmap.files.tensors import check_layout
from fedmap.study.models import model_of
from fedmap.study.plan.sections import ModelSection
from fedmap.study.plan.study_plan import StudyPlan
from fedmap.study.tensors.parameter_files import expected_parameters, expected_psi
from fedmap.study.terms import StudyTerms, parse_terms


def check_terms(manifest: Manifest) -> StudyTerms:
    """The terms, if they read and are those whose digests the manifest gives."""
    known = get_args(ModelSection.model_fields["name"].annotation)
    if manifest.model not in known:
        raise _misfit(f"the model {manifest.model[:80]!r} is not known here")
    terms = parse_terms(manifest.terms_json, "the study's terms")
    said = (manifest.study, manifest.model, manifest.terms_digest, manifest.plan_digest)
    if said != (terms.study, terms.plan.model.name, terms.digest, terms.plan.digest):
        raise _misfit("study, model or digests are not those of the terms")
    return terms


def check_model(plan: StudyPlan) -> Model:
    """The plan's model."""
    return model_of(plan)


def check_tables(manifest: Manifest, plan: StudyPlan, model: Model) -> None:
    """Everything the manifest gives per input, per time or per class."""
    inputs = model.network.inputs
    per_input = {
        "names of inputs": len(manifest.inputs),
        "means of the scaler": len(manifest.scaler.mean),
        "deviations of the scaler": len(manifest.scaler.deviation),
    }
    for what, count in per_input.items():
        if count != inputs:
            raise _misfit(f"there are {count:,} {what} for {inputs:,} inputs")
    if len(set(manifest.inputs)) != inputs:
        raise _misfit("two inputs have the same name")
    reference = manifest.reference
    if reference is not None and tuple(one.name for one in reference.inputs) != manifest.inputs:
        raise _misfit("the reference statistics are of other inputs")
    if manifest.threshold is not None and plan.task.kind != "binary":
        raise _misfit("there is a threshold, and the task has none")
    if manifest.baseline is not None:
        grid, cumulative = manifest.baseline.grid, manifest.baseline.cumulative
        if plan.task.kind != "cox" or grid != plan.task.grid or len(cumulative) != len(grid):
            raise _misfit("the baseline hazard does not fit the plan's times")
        if cumulative[0] < 0 or any(later < earlier for earlier, later in pairwise(cumulative)):
            raise _misfit("the baseline hazard falls somewhere")


def check_tensors(manifest: Manifest, plan: StudyPlan, model: Model, heads: Mapping[str, bytes]) -> None:
    """Names, types and shapes of μ and ψ by the headers of their files."""
    expected = {MU: expected_parameters(model.network)}
    if manifest.tier == 2:
        expected[PSI] = expected_psi(model.network, plan.prior)
    for entry in manifest.files:
        if entry.name in expected:
            check_layout(heads[entry.name], entry.size, expected[entry.name], entry.name)


def _misfit(reason: str) -> IncompatibleError:
    return IncompatibleError(reason, hint=UPDATE)
