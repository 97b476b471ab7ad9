"""The model card of a release: what a clinician reads, under the headings of TRIPOD+AI.

Says only what the manifest knows, and says plainly what was not measured. The same draft gives the same text.
Sections that are tables of figures are in `figures`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jinja2

from fedmap.bundles.card.blocks import Block, Bullets, Card, Code, Paragraph, Section, Table, plain
from fedmap.bundles.card.figures import (
    calibration,
    data_blocks,
    discrimination,
    groups,
    missing_values,
    percent,
)
from fedmap.bundles.manifest import Draft, day
from fedmap.study.plan.sections import Feature, FeatureBlock
from fedmap.study.plan.study_plan import StudyPlan
from fedmap.study.terms import parse_terms

_TIERS = {
    2: "Tier 2: a site can fine-tune it with labelled rows of its own (`fedmap-site personalise`), or "
    "predict with it as it is (`fedmap-site predict`).",
    3: "Tier 3: it predicts (`fedmap-site predict`). Fine-tuning needs the tier-2 bundle of this study.",
}
_SHOWN_CLASSES = 20
_MARKDOWN = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=False,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def model_card(draft: Draft) -> str:
    """The card as markdown, as it lies in the bundle."""
    return _MARKDOWN.get_template("card.md.jinja").render(card=card_of(draft))


def card_of(draft: Draft) -> Card:
    """The card of a release; a manifest is a draft too."""
    plan = parse_terms(draft.terms_json, draft.file_name).plan
    sections = {
        "Title and intended use": _intended_use(draft),
        "Data": data_blocks(draft),
        "Predictors": _predictors(plan),
        "Outcome and horizon": [Bullets.of(_outcome(plan))],
        "Missing values": [missing_values(draft)],
        "Model": [Bullets.of(_model(draft, plan))],
        "Discrimination": discrimination(draft),
        "Calibration": calibration(draft),
        "Threshold": [Paragraph("\n".join(_threshold(draft, plan)))],
        "Subgroups and regions": groups(draft, plan.task.metric),
        "Shift check": [_shift(draft)],
        "Limits": [Bullets.of(_limits(draft, plan))],
        "How to verify": _how_to_verify(draft),
        "Versions and lineage": [_lineage(draft)],
    }
    return Card(
        plain(draft.title),
        f"Model card of {draft.name}, version {draft.version}.",
        tuple(Section(heading, tuple(blocks)) for heading, blocks in sections.items()),
    )


def _intended_use(draft: Draft) -> Iterator[Block]:
    unknown = "The study does not say what the model is for. Do not use it for patients."
    yield Paragraph(plain(draft.intended_use) or unknown)
    yield Paragraph(_TIERS[draft.tier])
    released, expires = day(draft.released_unix_ms), day(draft.expires_unix_ms)
    yield Paragraph(f"Released on {released}. Must not be used from {expires} on.")


def _predictors(plan: StudyPlan) -> Iterator[Block]:
    yield Paragraph("A value outside its range is refused: it is most often a wrong unit.")
    yield Table.of(("Column", "Kind", "Unit", "Allowed"), map(_predictor, plan.features))


def _predictor(feature: Feature) -> tuple[str, str, str, str]:
    if isinstance(feature, FeatureBlock):
        name, kind = f"{feature.prefix}… ({feature.columns:,} columns)", "numbers"
    else:
        name, kind = feature.name, feature.kind
    allowed = "any"
    if not isinstance(feature, FeatureBlock) and feature.categories:
        allowed = ", ".join(str(value) for value in feature.categories)
    elif feature.range is not None:
        allowed = f"{feature.range[0]:g} to {feature.range[1]:g}"
    return name, kind, feature.unit or "–", allowed


def _outcome(plan: StudyPlan) -> Iterator[str]:
    task = plan.task
    if task.kind == "cox":
        unit = task.time_unit or "units of time"
        yield f"Event in column {task.event}, follow-up in column {task.time} ({unit})."
        if task.horizon is None:
            yield "The plan names no horizon."
        else:
            yield f"The risk is that of an event within {task.horizon:g} {unit}."
        return
    yield f"Outcome in column {task.label}."
    if task.positive is not None and task.positive.above is not None:
        yield f"Positive: a value above {task.positive.above:g}."
    if task.positive is not None and task.positive.below is not None:
        yield f"Positive: a value below {task.positive.below:g}."
    if task.classes:
        shown = ", ".join(str(value) for value in task.classes[:_SHOWN_CLASSES])
        yield f"Classes: {shown}{', …' if len(task.classes) > _SHOWN_CLASSES else ''}."
    yield "There is no horizon: the outcome is that of the row itself."


def _model(draft: Draft, plan: StudyPlan) -> Iterator[str]:
    lineage = draft.lineage
    yield f"Architecture: {draft.model}, {len(draft.inputs):,} inputs."
    yield (
        f"Trained by {lineage.sites:,} sites together, round {lineage.round:,} of {lineage.rounds:,}. No row "
        "of a patient left its site: sites sent parameters and totals."
    )
    how = "the site's own rows" if plan.scaling.mode == "local" else "means and spreads of all sites together"
    yield f"Inputs are scaled by {how}."
    if draft.baseline is not None:
        yield f"Baseline hazard: Breslow's, at {len(draft.baseline.grid):,} times."


def _threshold(draft: Draft, plan: StudyPlan) -> Iterator[str]:
    if plan.task.kind == "cox":
        yield "None: the model gives a risk. Where to act on it is a clinical decision."
    elif plan.task.kind == "multiclass":
        yield "None: the most probable class is given, with the probability of each."
    elif draft.threshold is None:
        yield "Not measured for this release. The model gives a probability and no class."
    else:
        yield f"A probability of {percent(draft.threshold.value)} or more counts as positive."
        rule = plan.task.threshold
        words = {
            "fixed": "It was fixed by the plan.",
            "prevalence": "It is the share of positive rows, on validation rows of the sites.",
            "youden": "It makes sensitivity plus specificity largest, on validation rows of the sites.",
            "sensitivity": "It reaches the plan's target sensitivity"
            + (f" of {percent(rule.value)}" if rule is not None and rule.value is not None else "")
            + " on validation rows of the sites.",
        }
        if draft.threshold.note:
            yield f"Note: {plain(draft.threshold.note)}."
        elif rule is not None:
            yield words[rule.rule]
        yield "The net benefit of acting at this threshold was not measured."


def _shift(draft: Draft) -> Paragraph:
    if draft.reference is None:
        return Paragraph(
            "Not possible with this bundle: it has no reference statistics.\n"
            "Compare your patients with those under Data yourself before you use it."
        )
    rows, sites = draft.reference.rows, draft.reference.sites
    return Paragraph(
        f"The bundle has pooled statistics of {rows:,} rows at {sites:,} sites.\n"
        "`fedmap-site check-shift` compares your rows with them, and `fedmap-site predict` does so by\n"
        "itself: it says whether to predict, to fine-tune, or not to use the model."
    )


def _limits(draft: Draft, plan: StudyPlan) -> Iterator[str]:
    yield "Figures are of sites that took part in the training. A new site may do worse."
    if draft.lineage.round < draft.lineage.rounds:
        yield "This is not the last round of the study, so this very model was not evaluated."
    unmeasured = {
        "discrimination": any(one.estimates for one in draft.performance),
        "calibration": bool(draft.calibration),
        "subgroups and regions": any(one.estimate for one in draft.groups),
    }
    missing = [what for what, measured in unmeasured.items() if not measured]
    if missing:
        yield f"Not measured: {', '.join(missing)}."
    if plan.task.kind == "cox" and draft.baseline is None:
        yield "There is no baseline hazard: the model ranks patients and gives no risk in per cent."
    yield "Counts below the sites' floor were never sent, so small groups are not described."
    yield "The model finds what goes together in the data. It does not say what causes what."


def _how_to_verify(draft: Draft) -> Iterator[Block]:
    yield Paragraph(
        "This card is part of a signed file. FINGERPRINT is that of the federation's release key, which you\n"
        "have on paper or ask for by telephone; never take it from where you got the file."
    )
    yield Code(f"fedmap-site bundle verify {draft.file_name} --fingerprint FINGERPRINT")
    yield Paragraph("All nine steps must pass. No network is needed.")


def _lineage(draft: Draft) -> Table:
    lineage = draft.lineage
    facts = [
        ("Bundle", f"{draft.name}, version {draft.version}"),
        ("Study", draft.study),
        ("Software", draft.software_version),
        ("Round", f"{lineage.round:,} of {lineage.rounds:,}"),
        ("Sites", f"{lineage.sites:,}"),
        ("Accepted updates", f"{lineage.accepted_updates:,}"),
        ("Refused", ", ".join(f"{one.code}: {one.count:,}" for one in lineage.refused) or "none"),
        ("Plan digest", draft.plan_digest),
        ("Terms digest", draft.terms_digest),
        ("Prior digest", lineage.prior_digest),
    ]
    return Table.of(("", ""), facts)
