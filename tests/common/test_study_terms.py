"""The terms that sites approve: one canonical text, one digest, and nothing that can be overlooked in it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedmap.errors import PlanError
from fedmap.study.plan.reading import load_plan
from fedmap.study.terms import MOST_ROUNDS, StudyTerms, parse_terms

PLANS = sorted((Path(__file__).parents[2] / "lab" / "fedmap_lab" / "plans").glob("*.toml"))


def terms(name: str = "uci-heart", **options: int) -> StudyTerms:
    return StudyTerms.of_plan(load_plan(PLANS[0].with_name(f"{name}.toml")), **options)


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_terms_of_every_shipped_plan_come_back_equal(path: Path) -> None:
    made = StudyTerms.of_plan(load_plan(path), rounds=3, seed=11)
    read = parse_terms(made.to_json())
    assert read == made
    assert read.digest == made.digest
    assert read.to_json() == made.to_json()


def test_consensus_rounds_are_told_only_where_there_are_some() -> None:
    without, with_some = terms().plan, terms().plan
    training = without.training
    without = without.model_copy(update={"training": replace(training, consensus_share=0)})
    with_some = with_some.model_copy(update={"training": replace(training, consensus_share=0.5)})
    assert "consensus_share" not in StudyTerms.of_plan(without).to_json(), (
        "agents that do not know it can read the plan"
    )
    assert parse_terms(StudyTerms.of_plan(with_some).to_json()).plan.training.consensus_share == 0.5
    assert without.digest != with_some.digest
    spelt_out = (
        StudyTerms.of_plan(with_some).to_json().replace('"consensus_share":0.5', '"consensus_share":0.0')
    )
    with pytest.raises(PlanError):
        parse_terms(spelt_out)


def test_another_round_count_or_seed_has_another_digest() -> None:
    digests = {terms().digest, terms(rounds=7).digest, terms(seed=1).digest}
    assert len(digests) == 3


def test_the_rounds_are_the_plans_unless_given() -> None:
    assert terms().rounds == terms().plan.rounds.count
    assert terms(rounds=2).rounds == 2


@pytest.mark.parametrize(("rounds", "seed"), [(0, 0), (MOST_ROUNDS + 1, 0), (1, -1), (1, 2**64)])
def test_impossible_rounds_and_seeds_are_refused(rounds: int, seed: int) -> None:
    with pytest.raises(PlanError, match="must be"):
        terms(rounds=rounds, seed=seed)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json",
        "[]",
        "{}",
        '{"format":1,"plan":{},"rounds":1}',
        '{"format":1,"plan":{},"rounds":true,"seed":0}',
        '{"format":1,"plan":[],"rounds":1,"seed":0}',
        '{"format":1,"plan":{},"rounds":1,"seed":0}',
        '{"format":1,"plan":{},"rounds":NaN,"seed":0}',
        "[" * 100_000,
    ],
)
def test_text_that_is_no_terms_is_a_plan_error(text: str) -> None:
    with pytest.raises(PlanError):
        parse_terms(text)


@pytest.mark.parametrize(
    ("section", "changed", "words"),
    [
        ("model", {"code": "print()"}, "code"),
        ("model", {"hidden": [1]}, "canonical"),  # an option without meaning for this model
        ("task", {"metric": "c_index"}, r"task\.metric"),
        ("", {"format": 2}, "format 1"),
    ],
)
def test_nothing_can_be_smuggled_past_the_reader(
    section: str, changed: dict[str, object], words: str
) -> None:
    form = json.loads(terms("interval").to_json())
    (form["plan"][section] if section else form).update(changed)
    with pytest.raises(PlanError, match=words):
        parse_terms(json.dumps(form, sort_keys=True, separators=(",", ":")))
    with pytest.raises(PlanError, match="canonical"):
        parse_terms(json.dumps(json.loads(terms().to_json()), indent=1))
