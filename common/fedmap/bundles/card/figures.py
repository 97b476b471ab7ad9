"""The tables of a model card: whom the model was trained on and how well it did.

Figures come from the manifest as they are.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedmap.bundles.card.blocks import Block, Bullets, Paragraph, Picture, Table
from fedmap.bundles.manifest import CALIBRATION, Draft, GroupEstimate, MissingShare, TierPerformance
from fedmap.metrics.names import METRICS
from fedmap.scoring.figures import Estimate

_CALIBRATION_METRICS = ("calibration_slope", "calibration_intercept")
_MODELS = {
    "personal": "own model of each site",
    "fine_tuned": "fine-tuned at the site",
    "global": "global model as released",
}


def percent(share: float) -> str:
    """Two figures at least: 0.0021 is 0.21 %."""
    digits = 1 if share >= 0.01 or share == 0 else 2
    text = f"{100 * share:.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + " %"


def data_blocks(draft: Draft) -> Iterator[Block]:
    """Sites, rows and events in totals."""
    data = draft.data
    if data is None:
        yield Paragraph(
            f"Trained at {draft.lineage.sites:,} sites. The numbers of rows and events were not collected."
        )
        return
    # Events of some sites over rows of all would be no share; the note says whether all of them told.
    whole = not data.note
    training = _events(data.training_events, data.training_rows, whole)
    test = _events(data.test_events, data.test_rows, whole)
    yield Table.of(
        ("", "Rows", "Events"),
        [("Training", f"{data.training_rows:,}", training), ("Test", f"{data.test_rows:,}", test)],
    )
    points = [
        f"Sites: {draft.lineage.sites:,}.",
        f"Training rows of the smallest site: {data.smallest_site:,}; of the largest: {data.largest_site:,}.",
        f"Regions: {', '.join(data.regions)}." if data.regions else "Regions: the sites gave none.",
    ]
    yield Bullets.of([*points, f"Counts: {data.note}."] if data.note else points)


def missing_values(draft: Draft) -> Block:
    """What becomes of an empty cell, and how many there were."""
    missing = draft.data.missing if draft.data is not None else ()
    if not missing:
        return Paragraph("How many cells were empty was not collected.")
    return Table.of(("Column", "An empty cell is", "Empty at the sites"), map(_missing, missing))


def discrimination(draft: Draft) -> Iterator[Block]:
    """Each tier's figures with their intervals."""
    rows = [
        (str(one.tier), _MODELS[one.model], _label(estimate.metric), *_figures(estimate))
        for one, estimate in _estimates(draft, calibration=False)
    ]
    if rows:
        yield Paragraph("Mean over sites, with the 95 % interval of that mean.")
        yield Table.of(("Tier", "Model", "Metric", "Value", "95 % interval", "Sites"), rows)
    else:
        yield Paragraph("Not measured for this release.")
    told = [f"Tier {one.tier}, {_MODELS[one.model]}: {one.note}." for one in draft.performance if one.note]
    if points := [*told, *_notes(draft, calibration=False)]:
        yield Bullets.of(points)


def calibration(draft: Draft) -> Iterator[Block]:
    """Slope, intercept, curve and picture of the global model."""
    summary = [
        (_MODELS[one.model], _label(estimate.metric), *_figures(estimate))
        for one, estimate in _estimates(draft, calibration=True)
    ]
    if summary:
        yield Paragraph(
            "A slope of 1 and an intercept of 0 are ideal. A slope below 1: risks are too extreme.\n"
            "An intercept above 0: risks are too low."
        )
        yield Table.of(("Model", "Metric", "Value", "95 % interval", "Sites"), summary)
        if notes := _notes(draft, calibration=True):
            yield Bullets.of(notes)
    else:
        yield Paragraph("Slope and intercept were not measured for this release.")
    if not draft.calibration:
        yield Paragraph(
            "No calibration curve was measured. Do not take the probabilities of this model for risks."
        )
        return
    yield Picture(CALIBRATION, "Predicted and observed risk of the global model")
    yield Table.of(
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


def groups(draft: Draft, metric: str) -> Iterator[Block]:
    """The global model by region and by value of each category column."""
    if not draft.groups:
        yield Paragraph("Not measured for this release. How the model does in any one group is not known.")
        return
    yield Paragraph(f"{_label(metric)} of the global model. Groups that are too small are suppressed.")
    yield Table.of(
        ("Kind", "Group", "Rows", "Value", "95 % interval", "Sites", "Note"), map(_group, draft.groups)
    )


def _estimates(draft: Draft, *, calibration: bool) -> Iterator[tuple[TierPerformance, Estimate]]:
    for one in draft.performance:
        for estimate in one.estimates:
            if (estimate.metric in _CALIBRATION_METRICS) == calibration:
                yield one, estimate


def _notes(draft: Draft, *, calibration: bool) -> list[str]:
    """What was said beside single figures."""
    return [
        f"Tier {one.tier}, {_label(estimate.metric)}: {estimate.note}."
        for one, estimate in _estimates(draft, calibration=calibration)
        if estimate.note
    ]


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
