"""A manifest in words for a clinic manager: what the model is for, how good it is, until when it may be used.

Words and numbers for the templates, nothing of HTML. Days are those of UTC.
"""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass

from fedmap.bundles.manifest import Manifest, TierPerformance
from fedmap.errors import PlanError
from fedmap.metrics import METRICS
from fedmap.scoring.figures import Estimate
from fedmap.study.terms import parse_terms
from fedmap.web.catalogue import Entry

_USES = {
    "global": "As it comes, without training",
    "fine_tuned": "After fine-tuning on your own data",
    "personal": "At the hospitals that trained it",
}
_ORDER = {"global": 0, "fine_tuned": 1, "personal": 2}
_METRICS = {
    "auroc": "how well it ranks patients: 1 is perfect, 0.5 is chance",
    "auprc": "how well it finds the few among the many: 1 is perfect",
    "balanced_accuracy": "share classified rightly, both groups counting alike: 0.5 is chance",
    "sensitivity": "share of cases that it finds",
    "specificity": "share of non-cases that it leaves alone",
    "accuracy": "share classified rightly",
    "c_index": "how well it ranks patients by risk: 1 is perfect, 0.5 is chance",
    "c_index_ipcw": "how well it ranks patients by risk: 1 is perfect, 0.5 is chance",
    "brier": "mean squared error of the risk: 0 is perfect",
    "integrated_brier": "mean squared error of the risk over time: 0 is perfect",
    "calibration_slope": "1 is right; below 1, its risks are too extreme",
    "calibration_intercept": "0 is right; above 0, its risks are too low",
    "log_loss": "0 is perfect",
}
_TIERS = {
    2: "Tier 2: to fine-tune on your own data, or to use as it is",
    3: "Tier 3: ready to use, no training needed",
}


@dataclass(frozen=True)
class Figure:
    """One line of the table that says how good a model is."""

    use: str
    metric: str
    meaning: str
    value: str
    interval: str
    sites: str
    note: str


@dataclass(frozen=True)
class BundleView:
    """One bundle as a page shows it: the entry, and in words what it does not say itself."""

    entry: Entry
    tier: str
    trained_on: str
    figures: tuple[Figure, ...]
    unmeasured: tuple[str, ...]
    released: str
    expires: str
    expired: bool
    size: str


def bundle_view(entry: Entry, now_unix_ms: int) -> BundleView:
    """What the page says of one bundle."""
    manifest = entry.manifest
    ranked = sorted(manifest.performance, key=lambda tier: _ORDER[tier.model])
    chosen = _study_metric(manifest)
    return BundleView(
        entry=entry,
        tier=_TIERS[manifest.tier],
        trained_on=trained_on(manifest),
        figures=tuple(
            figure(tier, estimate)
            for tier in ranked
            for estimate in tier.estimates
            if chosen in (estimate.metric, None)
        ),
        unmeasured=tuple(
            f"{_USES[tier.model]}: {(tier.note or 'not measured').rstrip('.')}."
            for tier in ranked
            if not tier.estimates
        ),
        released=day(manifest.released_unix_ms),
        expires=day(manifest.expires_unix_ms),
        expired=manifest.expires_unix_ms <= now_unix_ms,
        size=size(entry.size),
    )


def figure(tier: TierPerformance, estimate: Estimate) -> Figure:
    """A measured value, with its interval where there is one."""
    known = METRICS.get(estimate.metric)
    if estimate.low is None or estimate.high is None:
        interval = "not known"
    else:
        interval = f"{number(estimate.low)} to {number(estimate.high)}"
    return Figure(
        use=_USES[tier.model],
        metric=known.label if known else estimate.metric,
        meaning=_METRICS.get(estimate.metric, ""),
        value=number(estimate.value),
        interval=interval,
        sites=counted(estimate.sites, "site"),
        note=estimate.note,
    )


def _study_metric(manifest: Manifest) -> str | None:
    """The figure that the study chose to be judged by, where it was measured; the card has all of them."""
    measured = {estimate.metric for tier in manifest.performance for estimate in tier.estimates}
    try:
        chosen = parse_terms(manifest.terms_json, manifest.file_name).plan.task.metric
    except PlanError:
        return None  # such a bundle fails its own verification; a list of others must not fail with it
    return chosen if chosen in measured else None


def trained_on(manifest: Manifest) -> str:
    """Whose data stand behind the model, in one sentence part."""
    sites = counted(manifest.lineage.sites, "hospital")
    if manifest.data is None:
        return sites
    return f"{counted(manifest.data.training_rows, 'patient record')} at {sites}"


def counted(number_of: int, what: str) -> str:
    """`1 site`, `1,204 sites`."""
    return f"{number_of:,} {what}" if number_of == 1 else f"{number_of:,} {what}s"


def number(value: float) -> str:
    """Three decimals, with a minus sign that is one."""
    return f"{value:.3f}".replace("-", "−")


def day(unix_ms: int) -> str:
    """`3 March 2027`; a moment beyond every calendar is said to be so."""
    try:
        moment = datetime.datetime.fromtimestamp(unix_ms / 1000, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return "a day beyond the calendar"
    return f"{moment.day} {moment:%B} {moment.year}"


def size(count: int) -> str:
    """Bytes as people say them, decimal: `840 kB`, `1.2 MB`."""
    if count < 1000:
        return counted(count, "byte")
    power = min(int(math.log10(count)) // 3, 3)
    shown = f"{count / 1000**power:.3g}"
    if shown in ("1e+03", "1000") and power < 3:
        power, shown = power + 1, "1"
    return f"{float(shown):g} {('kB', 'MB', 'GB')[power - 1]}"
