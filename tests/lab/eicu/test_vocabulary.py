"""The federated vocabulary: what leaves a site, what the centre freezes, what is refused."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmap.errors import DataError
from fedmap_lab.eicu.vocabulary import (
    SiteTermCounts,
    TermCount,
    Vocabulary,
    count_terms,
    encode,
    pool_vocabulary,
)

TERMS = st.from_regex(r"(drug|dx)_[a-z0-9]{1,6}", fullmatch=True)


def occurrences(rows: Iterable[tuple[int, str, str]]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=["stay", "patient", "term"])


def site(name: str, **counts: int) -> SiteTermCounts:
    return SiteTermCounts(name, tuple(TermCount(term, stays) for term, stays in sorted(counts.items())), 0)


def test_a_term_of_too_few_patients_stays_home() -> None:
    rows = [(stay, f"p{stay}", "drug_common") for stay in range(5)]
    rows += [(stay, f"p{stay}", "drug_rare") for stay in range(4)]
    counted = count_terms("a", occurrences(rows), min_cell=5)
    assert counted.counts == (TermCount("drug_common", 5),)
    assert counted.suppressed == 1
    assert "drug_rare" not in repr(counted)


def test_many_stays_of_one_patient_do_not_lift_a_term_over_the_floor() -> None:
    rows = [(stay, "p1", "drug_odd") for stay in range(20)]
    assert count_terms("a", occurrences(rows), min_cell=5).counts == ()


def test_repeated_records_of_a_stay_count_once() -> None:
    rows = [(stay, f"p{stay}", "drug_a") for stay in range(6) for _ in range(3)]
    assert count_terms("a", occurrences(rows), min_cell=5).counts == (TermCount("drug_a", 6),)


def test_a_floor_below_five_is_refused() -> None:
    with pytest.raises(DataError, match="min_cell 4 is below the least floor, 5"):
        count_terms("a", occurrences([]), min_cell=4)


def test_a_site_without_records_has_nothing_to_tell() -> None:
    assert count_terms("a", occurrences([]), min_cell=5) == SiteTermCounts("a", (), 0)


def test_pooling_adds_stays_and_asks_for_enough_sites() -> None:
    sites = [site("a", drug_x=6, drug_y=30, dx_1=5), site("b", drug_x=6, dx_1=5)]
    assert pool_vocabulary(sites, min_stays=12, min_sites=2).terms == ("drug_x",)
    assert pool_vocabulary(sites, min_stays=10, min_sites=1).terms == ("drug_x", "drug_y", "dx_1")


def test_the_order_of_sites_changes_nothing() -> None:
    sites = [site("a", drug_x=6, dx_1=7), site("b", drug_z=9, drug_x=8), site("c", dx_1=5)]
    forward, backward = (pool_vocabulary(order, 5, 1) for order in (sites, sites[::-1]))
    assert forward == backward
    assert forward.digest == backward.digest


def test_a_vocabulary_without_terms_is_refused() -> None:
    with pytest.raises(DataError, match="no term reaches 50 stays at 1 of 1 sites"):
        pool_vocabulary([site("a", drug_x=6)], min_stays=50, min_sites=1)


@pytest.mark.parametrize(
    ("counts", "problem"),
    [
        ([site("a", drug_x=6), site("a", drug_x=6)], r"the site is counted twice \(1\)"),
        ([SiteTermCounts("a", (TermCount("drug_x", 6), TermCount("drug_x", 6)), 0)], "terms occur twice"),
        ([SiteTermCounts("a", (TermCount("Jane Doe, 1 High St", 6),), 0)], "entries are no valid term"),
        ([site("a", drug_x=4)], "counts are below the floor"),
    ],
)
def test_impossible_counts_of_a_site_are_refused(counts: list[SiteTermCounts], problem: str) -> None:
    with pytest.raises(DataError, match=problem) as caught:
        pool_vocabulary(counts, 5, 1)
    assert caught.value.site == "a"
    assert "Jane" not in str(caught.value)


def test_encoding_counts_records_in_frozen_order_and_reports_the_unknown() -> None:
    rows = [
        (8, "p", "dx_1"),
        (8, "p", "drug_a"),
        (8, "p", "drug_a"),
        (9, "q", "drug_new"),
        (9, "q", "drug_new"),
    ]
    encoded = encode(occurrences(rows), [9, 8, 7], Vocabulary(("drug_a", "drug_b", "dx_1"), 5, 1))
    assert list(encoded.frame.columns) == ["drug_a", "drug_b", "dx_1"]
    assert encoded.frame.loc[[9, 8, 7]].to_numpy().tolist() == [[0, 0, 0], [2, 0, 1], [0, 0, 0]]
    assert (encoded.unknown_terms, encoded.unknown_occurrences) == (1, 2)


def test_encoding_refuses_records_of_a_stay_it_was_not_given() -> None:
    with pytest.raises(ValueError, match="not to be encoded"):
        encode(occurrences([(1, "p", "dx_1")]), [2], Vocabulary(("dx_1",), 5, 1))


@settings(max_examples=50)
@given(st.sets(TERMS, min_size=1), st.sets(TERMS, min_size=1))
def test_another_list_has_another_digest(one: set[str], other: set[str]) -> None:
    first, second = (Vocabulary(tuple(sorted(terms)), 10, 1) for terms in (one, other))
    assert (first.digest == second.digest) == (one == other)
