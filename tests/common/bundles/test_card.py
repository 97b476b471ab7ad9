"""The model card: every heading a clinician looks for, and plain words where nothing was measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedmap.bundles.card.blocks import plain
from fedmap.bundles.card.figures import percent
from fedmap.bundles.card.text import model_card
from fedmap.bundles.manifest import Draft, Lineage, ThresholdValue
from fedmap.study.plan.reading import load_plan, parse_plan
from fedmap.study.plan.study_plan import StudyPlan
from fedmap.study.terms import StudyTerms
from tests.common.bundles.examples import BINARY, SURVIVAL, draft_of, released

HEADINGS = [
    "Title and intended use",
    "Data",
    "Predictors",
    "Outcome and horizon",
    "Missing values",
    "Model",
    "Discrimination",
    "Calibration",
    "Threshold",
    "Subgroups and regions",
    "Shift check",
    "Limits",
    "How to verify",
    "Versions and lineage",
]
PLANS = Path(__file__).resolve().parents[3] / "lab" / "fedmap_lab" / "plans"


def sections(card: str) -> dict[str, str]:
    parts = re.split(r"^## (.+)$", card, flags=re.MULTILINE)
    return dict(zip(parts[1::2], (text.strip() for text in parts[2::2]), strict=True))


def bare(plan: StudyPlan = BINARY) -> Draft:
    """A release of an earlier round: no figure at all."""
    made = released(plan)
    lineage = Lineage(round=3, rounds=50, sites=4, prior_digest="ab" * 32, accepted_updates=12)
    return draft_of(
        made,
        lineage=lineage,
        threshold=None,
        baseline=None,
        data=None,
        performance=(),
        calibration=(),
        groups=(),
    )


def test_card_has_every_heading_in_order_and_none_is_empty() -> None:
    for draft in (draft_of(released()), draft_of(released(SURVIVAL), 3), bare(), bare(SURVIVAL)):
        found = sections(model_card(draft))
        assert list(found) == HEADINGS
        assert all(found.values())


def test_figures_are_shown_with_their_intervals() -> None:
    found = sections(model_card(draft_of(released())))
    assert "| 3 | global model as released | AUROC | 0.800 | 0.760 to 0.830 | 4 |" in found["Discrimination"]
    assert "not measured: no site let a score go" in found["Discrimination"]
    assert "Calibration slope | 0.930 | 0.890 to 0.960" in found["Calibration"]
    assert "(calibration.svg)" in found["Calibration"]
    assert "| 15 % | 17 % | 12 % to 23 % | 300 |" in found["Calibration"]
    assert "| Training | 4,200 | 630 (15 %) |" in found["Data"]
    assert "smallest site: 310" in found["Data"]
    assert "| age | number | years | 18 to 110 |" in found["Predictors"]
    assert "37 %" in found["Threshold"]
    assert "norm: 2" in found["Versions and lineage"]
    assert "fedmap-site bundle verify tiny-t2-1.fedmap" in found["How to verify"]


def test_events_that_not_all_sites_told_are_no_share_of_all_rows() -> None:
    draft = draft_of(released())
    assert draft.data is not None
    data = draft.data.model_copy(update={"note": "2 of 4 sites did not tell their training events"})
    found = sections(model_card(draft_of(released(), data=data)))["Data"]
    assert "| Training | 4,200 | 630 |" in found
    assert "- Counts: 2 of 4 sites did not tell their training events." in found


def test_notes_beside_figures_are_shown_where_the_figures_are() -> None:
    draft = draft_of(released())
    noted = tuple(
        one.model_copy(
            update={
                "estimates": tuple(
                    figure.model_copy(update={"note": f"about {figure.metric}"}) for figure in one.estimates
                )
            }
        )
        for one in draft.performance
    )
    found = sections(model_card(draft_of(released(), performance=noted)))
    assert "- Tier 3, Calibration slope: about calibration_slope." in found["Calibration"]
    assert "calibration_slope" not in found["Discrimination"]
    assert "- Tier 1, AUROC: about auroc." in found["Discrimination"]


def test_suppressed_groups_are_named_as_such() -> None:
    found = sections(model_card(draft_of(released())))["Subgroups and regions"]
    assert "| subgroup | sex = M | suppressed | – | – | – | suppressed: too few rows |" in found
    assert "| region | South | suppressed |" in found


def test_what_was_not_measured_is_said_plainly() -> None:
    found = sections(model_card(bare()))
    assert "Not measured" in found["Discrimination"]
    assert "No calibration curve was measured" in found["Calibration"]
    assert "calibration.svg" not in found["Calibration"]
    assert "Not measured" in found["Threshold"]
    assert "not collected" in found["Data"]
    assert "not collected" in found["Missing values"]
    assert "Not measured" in found["Subgroups and regions"]
    assert "no reference statistics" in found["Shift check"]
    assert "not the last round" in found["Limits"]
    assert "discrimination, calibration, subgroups and regions" in found["Limits"]


def test_survival_card_gives_the_horizon_and_no_threshold() -> None:
    found = sections(model_card(draft_of(released(SURVIVAL))))
    assert "within 10 years" in found["Outcome and horizon"]
    assert "None" in found["Threshold"]
    assert "gives no risk in per cent" in sections(model_card(bare(SURVIVAL)))["Limits"]


def test_note_of_a_threshold_stands_where_the_rule_was_not_applied() -> None:
    draft = draft_of(released(), threshold=ThresholdValue(value=0.5, note="no site could choose one"))
    assert "Note: no site could choose one." in sections(model_card(draft))["Threshold"]


def test_tier_is_told_with_what_it_can_do() -> None:
    assert "personalise" in sections(model_card(draft_of(released())))["Title and intended use"]
    assert (
        "needs the tier-2 bundle" in sections(model_card(draft_of(released(), 3)))["Title and intended use"]
    )


def test_unknown_purpose_warns() -> None:
    text = BINARY.model_copy(update={"study": BINARY.study.model_copy(update={"intended_use": ""})})
    assert "Do not use it for patients" in model_card(draft_of(released(text)))


def test_hostile_text_of_a_plan_becomes_no_markup() -> None:
    title = "A <script>alert(1)</script> ![x](http://evil/x.svg) [y](http://evil)\n# Another | heading"
    card = model_card(draft_of(released(), title=title))
    assert "<script" not in card
    assert "](http" not in card
    assert list(sections(card)) == HEADINGS
    assert card.startswith("# A < script>")
    assert card.splitlines()[1] == ""


def test_bar_in_a_name_does_not_break_a_table() -> None:
    plan = parse_plan(
        """
        study = { name = "bars", title = "Bars" }
        task = { kind = "binary", label = "y", classes = [0, 1], metric = "auroc" }
        model = { name = "linear" }
        [[features]]
        name = "a|b"
        kind = "number"
        """,
        "bars",
    )
    assert r"| a\|b | number |" in model_card(draft_of(released(plan)))


@pytest.mark.parametrize("path", sorted(PLANS.glob("*.toml")), ids=lambda path: str(path.stem))
def test_every_shipped_plan_has_a_card(path: Path) -> None:
    plan = load_plan(path)
    terms = StudyTerms.of_plan(plan)
    draft = bare().model_copy(
        update={
            "terms_json": terms.to_json(),
            "terms_digest": terms.digest,
            "plan_digest": plan.digest,
            "model": plan.model.name,
            "title": plan.study.title,
        }
    )
    found = sections(model_card(draft))
    assert list(found) == HEADINGS
    assert found["Predictors"].count("\n") >= len(plan.features)


@pytest.mark.parametrize(
    ("share", "words"), [(0.0, "0 %"), (1.0, "100 %"), (0.5, "50 %"), (0.123, "12.3 %"), (0.0021, "0.21 %")]
)
def test_shares_are_shown_in_per_cent(share: float, words: str) -> None:
    assert percent(share) == words


def test_plain_text_keeps_comparisons() -> None:
    assert plain("ferritin <15 and > 3\n µg/l") == "ferritin <15 and > 3 µg/l"
