"""The report of a fine-tuned model as one HTML file: no script, nothing from anywhere else, good on paper.

The verdict first, then the figures behind it, the calibration pictures, the data, and how it was made.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from fedmap.bundles.card.picture import calibration_svg
from fedmap.metrics import metric_label
from fedmap.web.pages import Pages
from fedmap_site.personalise.comparison import Compared, Figure, number, signed, target_of
from fedmap_site.personalise.fine_tuning import Personalised
from fedmap_site.personalise.report import counts, notes, shown
from fedmap_site.predict.shift_report import advice

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
