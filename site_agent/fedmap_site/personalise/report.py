"""What a fine-tuned model's report says, once as JSON and once as a page for people.

The page is one HTML file: no script, nothing from anywhere else, good on paper. The report stays at the
site. Counts below the plan's floor are not spelt out all the same: it will be printed, and passed on.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from fedmap.bundles.card.picture import calibration_svg
from fedmap.bundles.verification import VerifiedBundle
from fedmap.bundles.writing import rule_values, scaler_values
from fedmap.data.table.site_dataset import SiteDataset
from fedmap.files.digests import sha256_hex
from fedmap.metrics import metric_label
from fedmap.scoring.disclosure import events, is_small_cell
from fedmap.study.plan.study_plan import StudyPlan
from fedmap.study.tensors.parameter_files import encode_parameters
from fedmap.web.pages import Pages
from fedmap_site.personalise.comparison import DRAWS, Compared, Figure, number, signed, target_of
from fedmap_site.personalise.fine_tuning import Personalised
from fedmap_site.personalise.model import (
    MODEL,
    PARAMETERS,
    REPORT,
    REPORT_PAGE,
    PersonalRecord,
    write_personal,
)
from fedmap_site.predict.shift_report import advice, shift_form


def report_json(done: Personalised, made_unix_ms: int, software_version: str) -> bytes:
    """For machines; the same figures as on the page."""
    comparison, shift = done.comparison, done.shift
    form = {
        "format": 1,
        "bundle": done.shared.name,
        "bundle_sha256": done.shared.bundle_sha256,
        "title": done.shared.title,
        "made_unix_ms": made_unix_ms,
        "software_version": software_version,
        "outcome": comparison.outcome,
        "verdict": comparison.verdict,
        "metric": done.shared.plan.task.metric,
        "metrics": [_metric_form(one) for one in comparison.metrics],
        "calibration": {
            "before": [one.model_dump(mode="json") for one in comparison.before_curve],
            "after": [one.model_dump(mode="json") for one in comparison.after_curve],
        },
        "rows": dict(counts(done.shared.plan, done.data)),
        "left_out": {e.reason: shown(e.rows, done.shared.plan) for e in done.data.exclusions},
        "notes": list(notes(done)),
        "training": {
            "seed": done.seed,
            "epochs": done.fit.epochs,
            "best_epoch": done.fit.best_epoch,
            "rule_from": done.rule_from,
        },
        "shift": None if shift is None else shift_form(shift, done.shared),
    }
    return json.dumps(form, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def counts(plan: StudyPlan, data: SiteDataset) -> tuple[tuple[str, str], ...]:
    """Rows and events of each part."""
    word = "events" if plan.task.kind == "cox" else "positive rows"
    lines: list[tuple[str, str]] = []
    for name, part in (("training", data.train), ("validation", data.validation), ("held-out", data.test)):
        lines.append((f"{name} rows", shown(len(part), plan)))
        found = events(plan.task.kind, part)
        if found is not None:
            lines.append((f"{name} {word}", shown(found, plan)))
    return tuple(lines)


def notes(done: Personalised) -> tuple[str, ...]:
    """What a reader should know."""
    found = list(done.data.notes)
    found.append(f"Intervals hold 95 % of {DRAWS:,} resamplings of the held-out rows (Bayesian bootstrap).")
    if done.shared.plan.data.repeated_patients == "allow":
        found.append("People with several rows make the intervals too narrow.")
    if done.rule_from == "bundle" and done.shared.plan.task.kind != "multiclass":
        found.append("The decision rule is the bundle's: the site's rows gave none of their own.")
    return tuple(found)


def shown(count: int, plan: StudyPlan) -> str:
    """A count, or that it is below the floor."""
    floor = plan.limits.min_cell
    return f"fewer than {floor}" if is_small_cell(count, floor) else f"{count:,}"


def _metric_form(one: Compared) -> dict[str, object]:
    return {"label": metric_label(one.metric), **asdict(one)}


_PAGES = Pages("Fine-tuning report", Path(__file__).parent / "templates")


def report_page(done: Personalised, folder: str, made_unix_ms: int, software_version: str) -> bytes:
    """The page; `folder` is where the model will be, for the command to use it."""
    plan, comparison = done.shared.plan, done.comparison
    main = plan.task.metric
    use = f"--model {folder}" if comparison.outcome == "helped" else f"--bundle {done.shared.name}"
    left_out = [(f"left out: {e.reason}", shown(e.rows, plan)) for e in done.data.exclusions]
    titles = ("Before: the shared model", "After: the personal model")
    curves = zip((comparison.before_curve, comparison.after_curve), titles, strict=True)
    page = _PAGES.page(
        "report.html",
        shared=done.shared,
        made=datetime.fromtimestamp(made_unix_ms / 1000, UTC).strftime("%d %B %Y, %H:%M UTC"),
        comparison=comparison,
        command=f"fedmap-site predict {use} --data FILE --out FILE",
        held_out=shown(len(done.data.test), plan),
        measures=[_measure(one, main) for one in sorted(comparison.metrics, key=lambda c: c.metric != main)],
        curves=() if plan.task.kind == "multiclass" else [calibration_svg(*curve) for curve in curves],
        shift=_shift(done),
        counts=(*counts(plan, done.data), *left_out),
        notes=notes(done),
        fit=done.fit,
        seed=done.seed,
        software_version=software_version,
    )
    return page.encode()


def _measure(one: Compared, main: str) -> dict[str, object]:
    difference = signed(one.difference).replace("95 % interval ", "") if one.difference else ""
    value, _, interval = difference.partition(" (")
    return {
        "main": one.metric == main,
        "label": metric_label(one.metric),
        "target": target_of(one.metric),
        "note": one.note,
        "figures": (_figure(one.before), _figure(one.after), (value, interval.removesuffix(")"))),
    }


def _figure(figure: Figure | None) -> tuple[str, str]:
    """A value and its interval; a narrow screen may put one below the other, and breaks neither."""
    if figure is None:
        return "not measured", ""
    if figure.low is None or figure.high is None:
        return number(figure.value), ""
    return number(figure.value), f"{number(figure.low)} to {number(figure.high)}"


def _shift(done: Personalised) -> tuple[str, ...]:
    if done.shift is None:
        return ()
    fine_tune = "Whether fine-tuning was the answer to that is said at the top."
    last = fine_tune if done.shift.verdict == "fine_tune" else advice(done.shift, done.shared)
    return (*done.shift.sentences, last)


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
