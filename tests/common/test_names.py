"""Names that are safe in paths, URIs and logs, and those that are not."""

from __future__ import annotations

import pytest

from fedmap.errors import RejectedError
from fedmap.names import (
    check_operator_name,
    check_region,
    check_site_name,
    check_study_name,
    is_site_name,
    shown,
)

HOSTILE = ["", "A", "-a", "_a", "a b", "a/b", "..", "a.b", "a\n", "é", "a" * 64, "a:b", "a\x00"]


@pytest.mark.parametrize("name", ["a", "0", "site-1", "north_west", "a" * 63])
def test_plain_names_are_accepted(name: str) -> None:
    assert check_site_name(name) == name
    assert check_operator_name(name) == name


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_could_do_harm_is_refused(name: str) -> None:
    assert not is_site_name(name)
    with pytest.raises(RejectedError, match="not a name for a site"):
        check_site_name(name)
    with pytest.raises(RejectedError, match="not a name for an operator"):
        check_operator_name(name)
    with pytest.raises(RejectedError, match="not a name for a study"):
        check_study_name(name)


def test_a_study_has_hyphens_and_no_underscores() -> None:
    assert check_study_name("uci-heart") == "uci-heart"
    with pytest.raises(RejectedError, match="study"):
        check_study_name("uci_heart")


def test_a_region_is_one_printable_line() -> None:
    assert check_region("") == ""
    assert check_region("East of England (Ömläut)") == "East of England (Ömläut)"
    for region in ("a\nb", "\x1b[31m", "x" * 101):
        with pytest.raises(RejectedError, match="not a region"):
            check_region(region)


def test_refused_text_is_shown_short_and_harmless() -> None:
    assert shown("\x1b[31m") == "'\\x1b[31m'"
    assert len(shown("x" * 1000)) < 60
