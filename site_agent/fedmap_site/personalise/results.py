"""A fine-tuned model and its report, put on disk together."""

from __future__ import annotations

from pathlib import Path

from fedmap.bundles.verification import VerifiedBundle
from fedmap.bundles.writing import rule_values, scaler_values
from fedmap.files.digests import sha256_hex
from fedmap.study.tensors.parameter_files import encode_parameters
from fedmap_site.personalise.fine_tuning import Personalised
from fedmap_site.personalise.model import (
    MODEL,
    PARAMETERS,
    REPORT,
    REPORT_PAGE,
    PersonalRecord,
    write_personal,
)
from fedmap_site.personalise.page import report_page
from fedmap_site.personalise.report import report_json


def write_results(
    done: Personalised, bundle: VerifiedBundle, folder: Path, made_unix_ms: int, software_version: str
) -> None:
    """The folder with all four files, or none of it."""
    personal, manifest = done.personal, bundle.manifest
    parameters = encode_parameters(personal.model.network, personal.parameters)
    threshold, baseline = rule_values(personal.rule)
    record = PersonalRecord(
        bundle=manifest.name,
        version=manifest.version,
        bundle_sha256=bundle.sha256,
        title=manifest.title,
        intended_use=manifest.intended_use,
        expires_unix_ms=manifest.expires_unix_ms,
        terms_json=manifest.terms_json,
        inputs=manifest.inputs,
        scaler=scaler_values(personal.scaler),
        threshold=threshold,
        baseline=baseline,
        rule_from=done.rule_from,
        reference=manifest.reference,
        outcome=done.comparison.outcome,
        made_unix_ms=made_unix_ms,
        software_version=software_version,
        seed=done.seed,
        epochs=done.fit.epochs,
        best_epoch=done.fit.best_epoch,
        parameters_sha256=sha256_hex(parameters),
    )
    write_personal(
        folder,
        {
            MODEL: record.model_dump_json(indent=1).encode() + b"\n",
            PARAMETERS: parameters,
            REPORT: report_json(done, made_unix_ms, software_version),
            REPORT_PAGE: report_page(done, str(folder), made_unix_ms, software_version),
        },
    )
