"""A site's own fine-tuned model on disk: a folder that appears whole or not at all, and is checked when read.

    model.json         where it comes from, plan, inputs, scaler, rule, and the digest of the parameters
    model.safetensors  θ and the batch-norm statistics
    report.html  report.json

It stands without its bundle, but not beyond it: it ends when the bundle ends. It never leaves the site.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Gt
from pydantic import ValidationError

from fedmap.bundles.loading import rule_of, scaler_of
from fedmap.bundles.manifest import BaselineValues, BundleName, Digest, Moment, ScalerValues, ThresholdValue
from fedmap.errors import ConflictError, IncompatibleError, IntegrityError, NotFoundError
from fedmap.files.digests import sha256_hex
from fedmap.files.durable import TEMPORARY, make_folder, read_file, storage_error, sync_folder, write_durably
from fedmap.scoring.figures import Count
from fedmap.shift.reference import Reference
from fedmap.study.models import model_of
from fedmap.study.plan.sections import Section
from fedmap.study.tensors.parameter_files import decode_parameters
from fedmap.study.terms import parse_terms
from fedmap_site.predict.rows import ReadyModel

MODEL, PARAMETERS, REPORT_PAGE, REPORT = "model.json", "model.safetensors", "report.html", "report.json"
Outcome = Literal["helped", "no_difference", "worse", "cannot_tell"]
_AGAIN = "Fine-tune again with `fedmap-site personalise`."
_STAY = "its report says to stay with the shared model: predict with --bundle {bundle}"


class PersonalRecord(Section):
    """`model.json`."""

    format: Literal[1] = 1
    bundle: BundleName
    version: Annotated[int, Gt(0)]
    bundle_sha256: Digest
    title: str
    intended_use: str
    expires_unix_ms: Moment
    terms_json: str
    inputs: tuple[str, ...]
    scaler: ScalerValues
    threshold: ThresholdValue | None = None
    baseline: BaselineValues | None = None
    rule_from: Literal["site", "bundle"]
    """Whose rows the threshold or the baseline hazard was chosen on."""
    reference: Reference | None = None
    outcome: Outcome
    """Whether fine-tuning helped, on held-out rows."""
    made_unix_ms: Moment
    software_version: str
    seed: Count
    epochs: Count
    best_epoch: Count
    parameters_sha256: Digest


def refuse_if_taken(folder: Path) -> None:
    """Before any work is done: nothing is ever replaced."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConflictError(
            f"{folder} exists already", hint="Give another folder with --out, or move this one away first."
        )


def write_personal(folder: Path, parts: Mapping[str, bytes]) -> None:
    """All files at once, under the folder's name only when they are on disk."""
    refuse_if_taken(folder)
    make_folder(folder.parent)
    unfinished = folder.parent / f"{TEMPORARY}{secrets.token_hex(8)}"
    make_folder(unfinished)
    try:
        for name, data in parts.items():
            write_durably(unfinished / name, data)
        unfinished.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise storage_error(error, folder) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def load_personal(folder: Path) -> ReadyModel:
    """The model of a folder; one that is not whole is refused."""
    record = read_record(folder)
    data = read_file(folder / PARAMETERS)
    if sha256_hex(data) != record.parameters_sha256:
        raise IntegrityError(f"{folder / PARAMETERS}: not the file that was written", hint=_AGAIN)
    plan = parse_terms(record.terms_json, str(folder / MODEL)).plan
    model = model_of(plan)
    inputs = model.network.inputs
    if not len(record.inputs) == len(record.scaler.mean) == len(record.scaler.deviation) == inputs:
        raise IntegrityError(f"{folder / MODEL}: the scaler does not fit the model", hint=_AGAIN)
    baseline = record.baseline
    if baseline is not None and len(baseline.grid) != len(baseline.cumulative):
        raise IntegrityError(f"{folder / MODEL}: the baseline hazard is damaged", hint=_AGAIN)
    bundle = f"{record.bundle}-{record.version}"
    return ReadyModel(
        name=bundle,
        title=record.title,
        intended_use=record.intended_use,
        personal=True,
        tier=2,
        bundle_sha256=record.bundle_sha256,
        expires_unix_ms=record.expires_unix_ms,
        plan=plan,
        inputs=record.inputs,
        model=model,
        parameters=decode_parameters(model.network, data, PARAMETERS),
        scaler=scaler_of(record.scaler),
        rule=rule_of(record.threshold, baseline),
        reference=record.reference,
        note="" if record.outcome == "helped" else _STAY.format(bundle=bundle),
    )


def read_record(folder: Path) -> PersonalRecord:
    path = folder / MODEL
    if not path.is_file():
        raise NotFoundError(
            f"{folder} holds no personal model", hint="Give the folder that `fedmap-site personalise` wrote."
        )
    try:
        return PersonalRecord.model_validate_json(read_file(path), strict=True)
    except ValidationError as error:
        if any(fault["loc"] == ("format",) for fault in error.errors()):
            raise IncompatibleError(f"{path}: of another version of this software", hint=_AGAIN) from None
        raise IntegrityError(f"{path}: the file is damaged", hint=_AGAIN) from None
