"""Features: encoding, layout and the checks that stand before any training."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedmap.data.features import encode_features, rows_to_exclude
from fedmap.study.plan.sections import Feature, FeatureBlock, FeatureColumn, MissingRule

SBP = FeatureColumn(name="sbp", kind="number", unit="mmHg", range=(60.0, 260.0))
SEX = FeatureColumn(name="sex", kind="category", categories=("F", "M"))
SMOKING = FeatureColumn(name="smoking", kind="category", categories=("never", "ex", "current"))
DRUGS = FeatureBlock(prefix="drug_", columns=4, kind="number", range=(0.0, 10.0), group="drugs")
EXCLUDE = MissingRule(action="exclude")


def test_numbers_and_categories_become_one_matrix_in_the_order_of_the_plan() -> None:
    frame = pd.DataFrame(
        {"smoking": ["ex", "never", "current"], "sex": ["M", "F", "M"], "sbp": [120, 130, 140]}
    )
    encoded = encode_features(frame, (SBP, SEX, SMOKING))
    assert encoded.problems == ()
    assert encoded.values.dtype == np.float32
    assert encoded.values.tolist() == [[120, 1, 1, 0], [130, 0, 0, 0], [140, 1, 0, 1]]
    assert encoded.layout.names == ("sbp", "sex=M", "smoking=ex", "smoking=current")
    assert encoded.layout.scaled == (True, False, False, False)
    assert encoded.layout.groups == (("", (0, 1, 2, 3)),)


def test_a_site_with_one_sex_only_is_encoded_like_every_other() -> None:
    assert encode_features(pd.DataFrame({"sex": ["M", "M"]}), (SEX,)).values.tolist() == [[1], [1]]
    assert encode_features(pd.DataFrame({"sex": ["F", "F"]}), (SEX,)).values.tolist() == [[0], [0]]


def test_a_block_is_sorted_by_name_and_keeps_its_group() -> None:
    frame = pd.DataFrame({"drug_b": [2], "sbp": [120], "drug_a": [1], "drug_d": [4], "drug_c": [3]})
    encoded = encode_features(frame, (SBP, DRUGS))
    assert encoded.layout.names == ("sbp", "drug_a", "drug_b", "drug_c", "drug_d")
    assert encoded.layout.groups == (("", (0,)), ("drugs", (1, 2, 3, 4)))
    assert encoded.values.tolist() == [[120, 1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("feature", "columns", "problems"),
    [
        # kPa or cmHg
        (
            SBP,
            {"sbp": [12.0, 13.5, 140.0]},
            ["sbp: 2 of 3 values lie outside 60 to 260 mmHg: check the unit"],
        ),
        (SBP, {"sbp": [60.0, 260.0]}, []),  # the ends of a range belong to it
        (
            SBP,
            {"sbp": ["120", "high", "", "inf", "1e300"]},
            [
                "sbp: 1 of 5 values are not numbers",
                "sbp: 2 of 5 values are infinite or too large",
                "sbp: 1 of 5 values are missing",
            ],
        ),
        (SEX, {"sex": ["F", "Hermia", "M"]}, ["sex: 1 of 3 values are not among the categories F, M"]),
        (SEX, {"sex": ["F", None, ""]}, ["sex: 2 of 3 values are missing"]),
        (
            DRUGS,
            {f"drug_{letter}": [0.0, 11.0] for letter in "abcd"},
            [
                "drug_: 4 of 8 values lie outside 0 to 10: check the unit "
                "(columns drug_a, drug_b, drug_c and 1 more)"
            ],
        ),
        (
            DRUGS,
            {"drug_a": [1, 2], "drug_b": ["1", "x"], "drug_c": [1, None], "drug_d": [0, 0]},
            [
                "drug_: 1 of 8 values are not numbers (columns drug_b)",
                "drug_: 1 of 8 values are missing (columns drug_c)",
            ],
        ),
        (
            FeatureColumn(name="n", kind="number", transform="log1p"),
            {"n": [-1.0, -3.0, 2.0]},
            ["n: 2 of 3 values are at or below -1, where log1p is not defined"],
        ),
    ],
)
def test_what_a_column_may_not_hold_is_counted_and_never_shown(
    feature: Feature, columns: dict[str, list[object]], problems: list[str]
) -> None:
    assert list(encode_features(pd.DataFrame(columns), (feature,)).problems) == problems


def test_log1p_is_taken_after_the_range_is_checked() -> None:
    feature = FeatureColumn(name="n", kind="number", range=(0.0, 10.0), transform="log1p")
    encoded = encode_features(pd.DataFrame({"n": [0.0, 10.0]}), (feature,))
    assert encoded.problems == ()
    assert encoded.values[:, 0] == pytest.approx(np.log1p([0.0, 10.0]))


def test_filled_values_are_noted_with_their_count() -> None:
    number = FeatureColumn(name="n", kind="number", missing=MissingRule(action="fill", fill=7.0))
    category = SEX.model_copy(update={"missing": MissingRule(action="fill", fill="M")})
    encoded = encode_features(pd.DataFrame({"n": [1.0, None], "sex": ["", "F"]}), (number, category))
    assert encoded.problems == ()
    assert encoded.values.tolist() == [[1, 1], [7, 0]]
    assert encoded.notes == (
        "n: 1 missing values filled with the plan's value",
        "sex: 1 missing values filled with the plan's value",
    )


def test_a_fill_is_transformed_like_the_values() -> None:
    rule = MissingRule(action="fill", fill=1.0)
    feature = FeatureColumn(name="n", kind="number", transform="log1p", missing=rule)
    values = encode_features(pd.DataFrame({"n": [1.0, None]}), (feature,)).values
    assert values[0] == values[1]


def test_rows_with_gaps_are_marked_where_the_plan_leaves_them_out() -> None:
    frame = pd.DataFrame({"sbp": [120, None, 130], "sex": ["F", "M", " "], "drug_a": [1, 1, None]})
    block = DRUGS.model_copy(update={"missing": EXCLUDE})
    rules = rows_to_exclude(
        frame,
        (SBP, SEX.model_copy(update={"missing": EXCLUDE}), block),
    )
    assert [(reason, mask.tolist()) for reason, mask in rules] == [
        ("sex missing", [False, False, True]),
        ("drug_ missing", [False, False, True]),
    ]


def test_absent_columns_are_left_to_the_reader_of_the_file() -> None:
    encoded = encode_features(pd.DataFrame({"sex": ["F"]}), (SBP, SEX))
    assert encoded.problems == ()
    assert encoded.layout.names == ("sex=M",)
