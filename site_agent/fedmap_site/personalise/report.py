"""What a fine-tuned model's report says, once as JSON and once as a page for people (`page`).

The report stays at the site. Counts below the plan's floor are not spelt out all the same: it will be
printed, and passed on.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from fedmap.data.table.site_dataset import SiteDataset
from fedmap.metrics import metric_label
from fedmap.scoring.disclosure import events, is_small_cell
from fedmap.study.plan import StudyPlan
from fedmap_site.personalise.comparison import DRAWS, Compared
from fedmap_site.personalise.fine_tuning import Personalised
from fedmap_site.predict.shift_report import shift_form


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
        found = events(plan, part)
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
