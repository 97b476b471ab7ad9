"""The study plan: what is accepted, and that every fault of a bad plan comes out at once in plain words."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedmap.errors import PlanError
from fedmap.study.plan.reading import load_plan, parse_plan
from fedmap.study.plan.sections import FeatureBlock, canonical_text
from fedmap.study.plan.study_plan import StudyPlan
from tests import plans

PLANS = Path(__file__).parents[2] / "lab" / "fedmap_lab" / "plans"

STUDY = """
[study]
name = "demo"
title = "A demonstration"
"""
BINARY = """
[task]
kind = "binary"
label = "sick"
classes = ["no", "yes"]
metric = "auroc"
"""
COX = """
[task]
kind = "cox"
time = "T"
event = "E"
time_unit = "days"
horizon = 100.0
metric = "c_index"
"""
AGE = """
[[features]]
name = "age"
kind = "number"
unit = "years"
range = [0, 120]
"""
SEX = """
[[features]]
name = "sex"
kind = "category"
categories = ["F", "M"]
"""
LINEAR = """
[model]
name = "linear"
"""


def plan_text(
    task: str = BINARY, features: str = AGE + SEX, model: str = LINEAR, study: str = STUDY, more: str = ""
) -> str:
    return study + task + features + model + more


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(PlanError) as caught:
        parse_plan(text, "demo.toml")
    for problem in caught.value.problems:
        assert "pydantic" not in problem
        assert "Input should" not in problem
        assert "http" not in problem
    return caught.value.problems


def paths(text: str) -> set[str]:
    return {problem.split(":")[0] for problem in problems(text)}


# What a good plan gives


def test_a_small_plan_is_read_with_its_defaults() -> None:
    plan = parse_plan(plan_text(), "demo.toml")
    assert plan.study.name == "demo"
    assert plan.task.classes == ("no", "yes")
    assert plan.task.threshold is not None
    assert (plan.task.threshold.rule, plan.task.threshold.value) == ("fixed", 0.5)
    assert plan.features[0].range == (0.0, 120.0)
    assert plan.split.test == 0.2
    assert plan.training.batch_size == 128
    assert plan.rounds.quorum == 2


def test_a_survival_plan_has_ten_equal_steps_up_to_the_horizon() -> None:
    plan = parse_plan(plan_text(task=COX), "demo.toml")
    assert plan.task.grid == pytest.approx([10.0 * step for step in range(1, 11)])
    assert plan.task.grid[-1] == plan.task.horizon
    assert plan.task.threshold is None


def test_the_algorithm_settings_are_read_from_their_sections() -> None:
    more = "[training]\nepochs = 3\n[prior]\nalpha = 0.5\nhidden = [8, 4]\n[aggregation]\npsi_steps = 0\n"
    plan = parse_plan(plan_text(more=more), "demo.toml")
    assert plan.training.epochs == 3
    assert plan.prior.alpha == 0.5
    assert plan.prior.hidden == (8, 4)
    assert plan.aggregation.psi_steps == 0


def test_a_block_of_columns_is_read() -> None:
    block = '[[features]]\nprefix = "drug_"\ncolumns = 5\nkind = "number"\ngroup = "drugs"\n'
    plan = parse_plan(plan_text(features=block), "demo.toml")
    feature = plan.features[0]
    assert isinstance(feature, FeatureBlock)
    assert (feature.prefix, feature.columns, feature.group) == ("drug_", 5, "drugs")


@pytest.mark.parametrize(
    ("missing", "action", "fill"),
    [('"refuse"', "refuse", None), ('"exclude"', "exclude", None), ("{ fill = 40 }", "fill", 40.0)],
)
def test_each_way_with_missing_values_is_read(missing: str, action: str, fill: float | None) -> None:
    plan = parse_plan(plan_text(features=f"{AGE}missing = {missing}\n"), "demo.toml")
    assert (plan.features[0].missing.action, plan.features[0].missing.fill) == (action, fill)


def test_the_dropout_defaults_to_that_of_the_named_network() -> None:
    towers = "".join(
        f'[[features]]\nname = "{group}"\nkind = "number"\ngroup = "{group}"\n'
        for group in ("drugs", "diagnoses", "physiology")
    )
    plan = parse_plan(plan_text(features=towers, model='[model]\nname = "eicu_mortality"\n'), "demo.toml")
    assert plan.model.dropout == 0.3


def test_a_plan_is_frozen_and_hashable() -> None:
    plan = parse_plan(plan_text(), "demo.toml")
    assert hash(plan) == hash(parse_plan(plan_text(), "other.toml"))
    with pytest.raises(ValidationError):
        plan.rounds.count = 3  # type: ignore[misc]


def test_a_copy_with_other_rounds_has_another_digest() -> None:
    plan = parse_plan(plan_text(), "demo.toml")
    first = plan.digest
    other = plan.model_copy(update={"rounds": plan.rounds.model_copy(update={"count": 7})})
    assert other.digest != first
    assert plan.digest == first


def test_a_plan_that_contradicts_itself_cannot_be_made_in_code_either() -> None:
    plan = parse_plan(plan_text(), "demo.toml")
    with pytest.raises(PlanError, match="must not be an input"):
        StudyPlan(
            study=plan.study,
            task=plan.task.model_copy(update={"label": "age"}),
            features=plan.features,
            model=plan.model,
        )


@pytest.mark.parametrize("path", sorted(PLANS.glob("*.toml")), ids=lambda path: path.stem)
def test_the_plans_that_ship_are_sound(path: Path) -> None:
    assert load_plan(path).features


# The digest


def test_the_digest_does_not_depend_on_layout_or_on_spelt_out_defaults() -> None:
    spaced = plan_text().replace(" = ", "   =\t").replace("\n", "\n\n# a comment\n")
    spelt_out = plan_text(more="[rounds]\ncount = 50\nquorum = 2\n")
    digest = parse_plan(plan_text(), "demo.toml").digest
    assert parse_plan(spaced, "demo.toml").digest == digest
    assert parse_plan(spelt_out, "demo.toml").digest == digest
    assert parse_plan(plan_text(features=SEX + AGE), "demo.toml").digest != digest


def ordered(value: Any, order: list[str]) -> Any:
    if isinstance(value, dict):
        return {key: ordered(value[key], order) for key in sorted(value, key=order.index)}
    return [ordered(inner, order) for inner in value] if isinstance(value, list) else value


def keys_of(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {key for inner in value.values() for key in keys_of(inner)}
    if isinstance(value, list):
        return {key for inner in value for key in keys_of(inner)}
    return set()


FULL = tomllib.loads(
    plan_text(
        more='[split]\ncolumn = "fold"\ntrain_value = "a"\ntest_value = "b"\nseed = 3\n'
        "[training]\nepochs = 2\nlearning_rate = 0.01\n[limits]\nmin_rows = 5\nmin_cell = 6\n"
    )
)


@settings(max_examples=30)
@given(order=st.permutations(sorted(keys_of(FULL))))
def test_the_digest_does_not_depend_on_the_order_of_keys(order: list[str]) -> None:
    expected = parse_plan(plans.toml_table("", FULL), "demo.toml").digest
    assert parse_plan(plans.toml_table("", ordered(FULL, order)), "demo.toml").digest == expected


# Faults of single keys


def test_a_syntax_error_names_the_line() -> None:
    (problem,) = problems("[study\nname = 3")
    assert "not valid TOML" in problem
    assert "line 1" in problem


@pytest.mark.parametrize("missing", ["study", "task", "model", "features"])
def test_a_missing_section_is_named(missing: str) -> None:
    parts = {"study": STUDY, "task": BINARY, "model": LINEAR, "features": AGE}
    parts[missing] = ""
    assert paths("".join(parts.values())) == {missing}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("[training]\nepoch = 3\n", "training.epoch: unknown key, did you mean `epochs`?"),
        ("[trainig]\nx = 1\n", "trainig: unknown key"),
        ('[training]\nepochs = "3"\n', "training.epochs: must be a whole number"),
        ("[training]\nepochs = 2.5\n", "training.epochs: must be a whole number"),
        ("[training]\nepochs = true\n", "training.epochs: must be a whole number"),
        ("[training]\nlearning_rate = inf\n", "training.learning_rate: must be a finite number"),
        ("[prior]\nalpha = nan\n", "prior.alpha: must be a finite number"),
        ("[prior]\nalpha = 0\n", "prior.alpha: must be greater than 0"),
        ("[prior]\nhidden = [3]\n", "prior.hidden[1]: is missing"),
        ("[rounds]\ncount = 0\n", "rounds.count: must be at least 1"),
        ("[split]\ntest = 1.0\n", "split.test: must be less than 1"),
        ("[training]\nconsensus_share = 3\n", "training.consensus_share: must be less than 1"),
        ("[training]\nconsensus_share = 1\n", "training.consensus_share: must be less than 1"),
        ('[scaling]\nmode = "none"\n', "scaling.mode: must be 'pooled' or 'local'"),
        ("[data]\npatient = 2020-01-01\n", "data.patient: must not be a date or a time"),
        ('[data]\npatient = " "\n', "data.patient: must not be blank"),
        ("[data]\npatient = 5\n", "data.patient: must be a text"),
        ("[data]\nexclude_nonpositive_time = 1\n", "data.exclude_nonpositive_time: must be true or false"),
        ("[[limits]]\nmin_rows = 1\n", "limits: must be a table of keys and values"),
    ],
)
def test_a_bad_value_is_named_in_plain_words(more: str, expected: str) -> None:
    (problem,) = problems(plan_text(more=more))
    assert problem.startswith(expected)


def test_a_bad_study_name_says_what_a_name_looks_like() -> None:
    (problem,) = problems(plan_text(study='[study]\nname = "My Study"\ntitle = "x"\n'))
    assert problem.startswith("study.name: must be lower-case letters")


@pytest.mark.parametrize(
    "missing", ['"drop"', "{ fil = 3 }", "{ fill = true }", "{ fill = 1, more = 2 }", "3"]
)
def test_an_unknown_way_with_missing_values_is_refused(missing: str) -> None:
    (problem,) = problems(plan_text(features=f"{AGE}missing = {missing}\n"))
    assert problem.startswith('features[0].missing: must be "refuse", "exclude" or')


def test_faults_of_several_sections_and_contradictions_come_out_together() -> None:
    text = plan_text(
        task=COX.replace('metric = "c_index"', 'metric = "auroc"\nlabel = "sick"\nhorizn = 3\n'),
        features=AGE.replace("[0, 120]", '[0, "x"]') + SEX.replace('["F", "M"]', '["F"]'),
        model='[model]\nname = "linear"\nhidden = [3]\ndropout = 2.0\n',
        more='[training]\nepochs = 0\n[split]\ncolumn = "T"\ntest = 0.3\ntrain_value = 1\n',
    )
    assert paths(text) >= {
        "task.horizn",
        "task.metric",
        "task.label",
        "features[0].range[1]",
        "features[1].categories",
        "model.dropout",
        "model.hidden",
        "training.epochs",
        "split.test",
        "split.test_value",
        "split.column",
    }


def test_a_value_of_the_wrong_type_is_not_reported_as_missing_too() -> None:
    assert paths(plan_text(task=COX.replace('time = "T"', "time = 5"))) == {"task.time"}


# Contradictions


@pytest.mark.parametrize(
    ("task", "path"),
    [
        (COX.replace('time = "T"\n', ""), "task.time"),
        (COX.replace('event = "E"\n', ""), "task.event"),
        (COX.replace('time_unit = "days"\n', ""), "task.time_unit"),
        (COX.replace("horizon = 100.0\n", ""), "task.horizon"),
        (COX + 'label = "sick"\n', "task.label"),
        (COX + "classes = [0, 1]\n", "task.classes"),
        (COX + "positive = { above = 1 }\n", "task.positive"),
        (COX + 'threshold = { rule = "youden" }\n', "task.threshold"),
        (COX + "grid = [50.0, 20.0, 100.0]\n", "task.grid"),
        (COX + "grid = [50.0, 50.0, 100.0]\n", "task.grid"),
        (COX + "grid = [50.0, 90.0]\n", "task.grid"),
        (COX + "grid = []\n", "task.grid"),
        (COX.replace("c_index", "auroc"), "task.metric"),
        (COX.replace('event = "E"', 'event = "T"'), "task.event"),
        (BINARY.replace("auroc", "c_index"), "task.metric"),
        (BINARY.replace("auroc", "calibration_slope"), "task.metric"),
        (BINARY.replace('label = "sick"\n', ""), "task.label"),
        (BINARY.replace('classes = ["no", "yes"]\n', ""), "task"),
        (BINARY.replace('"no", "yes"', '"a", "b", "c"'), "task.classes"),
        (BINARY.replace('"no", "yes"', '0, "0.0"'), "task.classes"),
        (BINARY + "positive = { above = 0 }\n", "task.positive"),
        (BINARY.replace('classes = ["no", "yes"]', "positive = { above = 0, below = 3 }"), "task.positive"),
        (BINARY.replace('classes = ["no", "yes"]', "positive = { }"), "task.positive"),
        (BINARY + 'time = "T"\n', "task.time"),
        (BINARY + "horizon = 3.0\n", "task.horizon"),
        (BINARY + "grid = [3.0]\n", "task.grid"),
        (BINARY + 'threshold = { rule = "youden", value = 0.3 }\n', "task.threshold.value"),
        (BINARY + 'threshold = { rule = "sensitivity" }\n', "task.threshold.value"),
        (BINARY.replace('"binary"', '"multiclass"') + "threshold = { rule = 'youden' }\n", "task.threshold"),
        (BINARY.replace('"binary"', '"multiclass"').replace('"no", "yes"', '"no"'), "task.classes"),
    ],
)
def test_a_task_that_contradicts_itself_is_refused(task: str, path: str) -> None:
    assert paths(plan_text(task=task)) == {path}


@pytest.mark.parametrize(
    ("features", "path"),
    [
        (AGE + AGE, "features[1].name"),
        (AGE.replace("age", "sick"), "features[0].name"),
        (AGE.replace("[0, 120]", "[120, 0]"), "features[0].range"),
        (AGE.replace("[0, 120]", "[5, 5]"), "features[0].range"),
        (AGE.replace("[0, 120]", "[-1, 5]") + 'transform = "log1p"\n', "features[0].range"),
        (AGE + "missing = { fill = 121 }\n", "features[0].missing"),
        (AGE + 'missing = { fill = "old" }\n', "features[0].missing"),
        (AGE + 'categories = ["a", "b"]\n', "features[0].categories"),
        (SEX.replace('"F", "M"', '"F"'), "features[0].categories"),
        (SEX.replace('"F", "M"', '1, "1.0", 2'), "features[0].categories"),
        (SEX.replace('categories = ["F", "M"]', ""), "features[0].categories"),
        (SEX + "range = [0, 1]\n", "features[0].range"),
        (SEX + "scale = true\n", "features[0].scale"),
        (SEX + 'transform = "log1p"\n', "features[0].transform"),
        (SEX + 'missing = { fill = "X" }\n', "features[0].missing"),
        ('[[features]]\nkind = "number"\n', "features[0]"),
        ('[[features]]\nname = "a"\nprefix = "b"\nkind = "number"\n', "features[0]"),
        ('[[features]]\nprefix = "a"\ncolumns = 2\nkind = "category"\n', "features[0].kind"),
        (AGE + '[[features]]\nprefix = "a"\ncolumns = 2\nkind = "number"\n', "features[1].prefix"),
        ('[[features]]\nprefix = "si"\ncolumns = 2\nkind = "number"\n', "features[0].prefix"),
        (
            '[[features]]\nprefix = "drug"\ncolumns = 2\nkind = "number"\n'
            '[[features]]\nprefix = "drug_"\ncolumns = 2\nkind = "number"\n',
            "features[1].prefix",
        ),
    ],
)
def test_features_that_contradict_themselves_are_refused(features: str, path: str) -> None:
    assert paths(plan_text(features=features)) == {path}


def test_the_outcome_hidden_behind_a_prefix_is_refused_as_a_leak() -> None:
    block = '[[features]]\nprefix = "si"\ncolumns = 2\nkind = "number"\n'
    (problem,) = problems(plan_text(features=block))
    assert "task.label, which must not be an input" in problem


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ('[data]\npatient = "age"\n', "features[0].name"),
        ('[data]\npatient = "sick"\n', "data.patient"),
        ('[split]\ncolumn = "sick"\ntrain_value = 0\ntest_value = 1\n', "split.column"),
        ('[split]\ncolumn = "age"\ntrain_value = 0\ntest_value = 1\n', "features[0].name"),
        ('[split]\ncolumn = "fold"\ntrain_value = 1\ntest_value = "1.0"\n', "split.test_value"),
        ('[split]\ncolumn = "fold"\ntrain_value = 1\n', "split.test_value"),
        ('[split]\ncolumn = "fold"\ntest = 0.2\ntrain_value = 0\ntest_value = 1\n', "split.test"),
        ("[split]\ntrain_value = 0\n", "split.train_value"),
        ('[data]\nrepeated_patients = "allow"\n', "data.patient"),
        ('[data]\nformat = "eicu"\n', "data.patient"),
        ('[data]\nformat = "cprd"\npatient = "pid"\n', "data.format"),
        ("[data]\nexclude_nonpositive_time = true\n", "data.exclude_nonpositive_time"),
    ],
)
def test_data_and_split_that_contradict_the_rest_are_refused(more: str, path: str) -> None:
    assert paths(plan_text(more=more)) == {path}


@pytest.mark.parametrize(
    ("task", "more", "path"),
    [
        (COX, '[data]\nformat = "interval"\n', "data.format"),
        (COX.replace("days", "years"), '[data]\nformat = "cprd"\npatient = "p"\n', "task.horizon"),
        (COX, '[data]\nformat = "cprd"\npatient = "p"\n', "task.time_unit"),
    ],
)
def test_a_file_shape_that_does_not_hold_the_outcome_is_refused(task: str, more: str, path: str) -> None:
    assert paths(plan_text(task=task, more=more)) == {path}


@pytest.mark.parametrize(
    ("task", "model", "expected"),
    [
        (BINARY, 'name = "linear"\nhidden = [8]\n', {"model.hidden"}),
        (BINARY, 'name = "linear"\ndropout = 0.1\n', {"model.dropout"}),
        (
            BINARY,
            'name = "interval_iron"\nhidden = [8]\nbatch_norm = true\n',
            {"model.hidden", "model.batch_norm"},
        ),
        (COX, 'name = "interval_iron"\n', {"model.name"}),
        (BINARY, 'name = "cprd_survival"\n', {"model.name"}),
        (BINARY, 'name = "mlp"\nhidden = []\n', {"model.hidden"}),
        (BINARY, 'name = "mlp"\nhidden = [0]\n', {"model.hidden[0]"}),
        (BINARY, 'name = "eicu_mortality"\n', {"features", "features[0].group", "features[1].group"}),
    ],
)
def test_a_model_that_does_not_fit_is_refused(task: str, model: str, expected: set[str]) -> None:
    assert paths(plan_text(task=task, model=f"[model]\n{model}")) == expected


# Files and values


def test_a_plan_file_that_is_not_there_is_a_plan_error(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot be read"):
        load_plan(tmp_path / "none.toml")


def test_a_plan_file_that_is_not_text_is_a_plan_error(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanError, match="not UTF-8"):
        load_plan(tmp_path / "plan.toml")


@pytest.mark.parametrize(
    ("one", "other"), [(0, "0"), (0.0, " 0 "), ("1.50", 1.5), ("1e2", 100), (True, 1), ("False", "0")]
)
def test_equal_values_meet_in_one_spelling(one: object, other: object) -> None:
    assert canonical_text(one) == canonical_text(other)


@pytest.mark.parametrize(("one", "other"), [("M", "m"), ("1_0", "10"), ("inf", "Infinity"), ("a b", "ab")])
def test_values_that_differ_stay_apart(one: object, other: object) -> None:
    assert canonical_text(one) != canonical_text(other)


@settings(max_examples=150)
@given(text=st.text(max_size=60))
def test_no_text_makes_the_reader_fail_in_any_other_way(text: str) -> None:
    with pytest.raises(PlanError):
        parse_plan(text, "fuzz.toml")


SCALARS = st.one_of(
    st.none().map(lambda _: "x"), st.integers(), st.floats(), st.booleans(), st.text(max_size=5)
)
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=3))


@settings(max_examples=150)
@given(
    section=st.sampled_from(["study", "task", "data", "split", "model", "training", "prior", "limits"]),
    key=st.sampled_from(sorted(keys_of(FULL))),
    value=VALUES,
)
def test_a_wrong_value_anywhere_is_a_plan_or_a_plan_error(section: str, key: str, value: object) -> None:
    given_plan = {name: dict(body) for name, body in FULL.items() if name != "features"}
    given_plan.setdefault(section, {}).pop(key, None)
    given_plan[section][key] = value
    text = AGE + "".join(plans.toml_table(f"[{name}]", body) for name, body in given_plan.items())
    try:
        parse_plan(text, "fuzz.toml")
    except PlanError as error:
        assert error.problems  # noqa: PT017
