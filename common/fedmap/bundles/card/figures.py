"""The tables of a model card: whom the model was trained on and how well it did.

Figures come from the manifest as they are. Text from elsewhere is made harmless for markdown and HTML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from fedmap.bundles.manifest import CALIBRATION, Draft, GroupEstimate, MissingShare
from fedmap.metrics.names import METRICS
from fedmap.scoring.figures import Estimate

_CALIBRATION_METRICS = ("calibration_slope", "calibration_intercept")
_MODELS = {
    "personal": "own model of each site",
    "fine_tuned": "fine-tuned at the site",
    "global": "global model as released",
}
_NUMBERS = frozenset({"Rows", "Events", "Value", "95 % interval", "Sites", "Predicted", "Observed"})
_TAG = re.compile(r"<(?=[A-Za-z/!?])")


def plain(text: str) -> str:
    """One line that holds no tag, link or picture, and reads the same as text and as a page."""
    line = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    return _TAG.sub("< ", line).replace("](", "] (").replace("][", "] [")


def bullet(text: str) -> str:
    return f"- {plain(text)}"


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A markdown table."""
    yield "| " + " | ".join(heading) + " |"
    yield "|" + "|".join("---:" if name in _NUMBERS else "---" for name in heading) + "|"
    for row in rows:
        yield "| " + " | ".join(plain(cell).replace("|", r"\|") for cell in row) + " |"


def percent(share: float) -> str:
    """Two figures at least: 0.0021 is 0.21 %."""
    digits = 1 if share >= 0.01 or share == 0 else 2
    text = f"{100 * share:.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + " %"


def data_lines(draft: Draft) -> Iterator[str]:
    """Sites, rows and events in totals."""
    data = draft.data
    if data is None:
        yield f"Trained at {draft.lineage.sites:,} sites. The numbers of rows and events were not collected."
        return
    # Events of some sites over rows of all would be no share; the note says whether all of them told.
    whole = not data.note
    yield from table(
        ("", "Rows", "Events"),
        [
            ("Training", f"{data.training_rows:,}", _events(data.training_events, data.training_rows, whole)),
            ("Test", f"{data.test_rows:,}", _events(data.test_events, data.test_rows, whole)),
        ],
    )
    yield ""
    yield bullet(f"Sites: {draft.lineage.sites:,}.")
    yield bullet(
        f"Training rows of the smallest site: {data.smallest_site:,}; of the largest: {data.largest_site:,}."
    )
    regions = ", ".join(data.regions)
    yield bullet(f"Regions: {regions}." if regions else "Regions: the sites gave none.")
    if data.note:
        yield bullet(f"Counts: {data.note}.")


def missing_lines(draft: Draft) -> Iterator[str]:
    """What becomes of an empty cell, and how many there were."""
    missing = draft.data.missing if draft.data is not None else ()
    if not missing:
        yield "How many cells were empty was not collected."
        return
    yield from table(("Column", "An empty cell is", "Empty at the sites"), map(_missing, missing))


def discrimination_lines(draft: Draft) -> Iterator[str]:
    """Each tier's figures with their intervals."""
    rows = [
        (str(one.tier), _MODELS[one.model], _label(estimate.metric), *_figures(estimate))
        for one in draft.performance
        for estimate in one.estimates
        if estimate.metric not in _CALIBRATION_METRICS
    ]
    if rows:
        yield "Mean over sites, with the 95 % interval of that mean."
        yield ""
        yield from table(("Tier", "Model", "Metric", "Value", "95 % interval", "Sites"), rows)
        yield ""
    else:
        yield "Not measured for this release."
        yield ""
    for one in draft.performance:
        if one.note:
            yield bullet(f"Tier {one.tier}, {_MODELS[one.model]}: {one.note}.")
    yield from _notes(draft, calibration=False)


def calibration_lines(draft: Draft) -> Iterator[str]:
    """Slope, intercept, curve and picture of the global model."""
    summary = [
        (_MODELS[one.model], _label(estimate.metric), *_figures(estimate))
        for one in draft.performance
        for estimate in one.estimates
        if estimate.metric in _CALIBRATION_METRICS
    ]
    if summary:
        yield "A slope of 1 and an intercept of 0 are ideal. A slope below 1: risks are too extreme."
        yield "An intercept above 0: risks are too low."
        yield ""
        yield from table(("Model", "Metric", "Value", "95 % interval", "Sites"), summary)
        yield ""
        if notes := list(_notes(draft, calibration=True)):
            yield from (*notes, "")
    else:
        yield "Slope and intercept were not measured for this release."
        yield ""
    if not draft.calibration:
        yield "No calibration curve was measured. Do not take the probabilities of this model for risks."
        return
    yield f"![Predicted and observed risk of the global model]({CALIBRATION})"
    yield ""
    yield from table(
        ("Predicted", "Observed", "95 % interval", "Rows"),
        (
            (
                percent(one.predicted),
                percent(one.observed),
                f"{percent(one.low)} to {percent(one.high)}",
                f"{one.rows:,}",
            )
            for one in draft.calibration
        ),
    )


def group_lines(draft: Draft, metric: str) -> Iterator[str]:
    """The global model by region and by value of each category column."""
    if not draft.groups:
        yield "Not measured for this release. How the model does in any one group is not known."
        return
    yield f"{_label(metric)} of the global model. Groups that are too small are suppressed."
    yield ""
    yield from table(
        ("Kind", "Group", "Rows", "Value", "95 % interval", "Sites", "Note"), map(_group, draft.groups)
    )


def _notes(draft: Draft, *, calibration: bool) -> Iterator[str]:
    """What was said beside single figures."""
    for one in draft.performance:
        for estimate in one.estimates:
            if estimate.note and (estimate.metric in _CALIBRATION_METRICS) == calibration:
                yield bullet(f"Tier {one.tier}, {_label(estimate.metric)}: {estimate.note}.")


def _group(group: GroupEstimate) -> tuple[str, ...]:
    rows = "suppressed" if group.rows is None else f"{group.rows:,}"
    if group.estimate is None:
        return group.kind, group.name, rows, "–", "–", "–", group.note or "suppressed: too few rows"
    notes = "; ".join(note for note in (group.note, group.estimate.note) if note)
    return group.kind, group.name, rows, *_figures(group.estimate), notes


def _missing(one: MissingShare) -> tuple[str, str, str]:
    words = {"refuse": "refused", "exclude": "a reason to leave the row out"}.get(one.rule, one.rule)
    share = "suppressed or not counted" if one.share is None else percent(one.share)
    return one.column, words, f"{share} ({one.note})" if one.note else share


def _figures(estimate: Estimate) -> tuple[str, str, str]:
    interval = "none"
    if estimate.low is not None and estimate.high is not None:
        interval = f"{estimate.low:.3f} to {estimate.high:.3f}"
    return f"{estimate.value:.3f}", interval, f"{estimate.sites:,}"


def _events(events: int | None, rows: int, with_share: bool) -> str:
    if events is None:
        return "not collected, or suppressed"
    return f"{events:,} ({percent(events / rows)})" if rows and with_share else f"{events:,}"


def _label(metric: str) -> str:
    return METRICS[metric].label if metric in METRICS else metric
