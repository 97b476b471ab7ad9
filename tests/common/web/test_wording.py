"""Numbers, days and sizes as a clinic manager reads them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmap.bundles.manifest import TierPerformance
from fedmap.metrics import METRICS
from fedmap.scoring.figures import Estimate
from fedmap.web.catalogue import Entry
from fedmap.web.wording import _METRICS, bundle_view, counted, day, figure, number, size
from tests.common.bundles.examples import RELEASED
from tests.common.web.offered import manifest


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (840_300, "840 kB"),
        (999_499, "999 kB"),
        (999_999, "1 MB"),
        (1_234_567, "1.23 MB"),
        (200_000_000, "200 MB"),
        (5_000_000_000_000, "5000 GB"),
    ],
)
def test_sizes_are_said_as_people_say_them(count: int, shown: str) -> None:
    assert size(count) == shown


@given(st.integers(0, 10**14))
def test_a_size_is_never_off_by_more_than_rounding(count: int) -> None:
    found = re.fullmatch(r"([\d.]+) (bytes?|kB|MB|GB)", size(count))
    assert found is not None
    unit = {"byte": 1, "bytes": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}[found[2]]
    assert abs(float(found[1]) * unit - count) <= 0.006 * count


@given(st.integers(1, 2**63))
def test_every_moment_has_words(unix_ms: int) -> None:
    assert re.fullmatch(r"\d{1,2} [A-Z][a-z]+ \d{4}|a day beyond the calendar", day(unix_ms))


def test_days_numbers_and_counts() -> None:
    assert (day(RELEASED), number(-0.12345), counted(1, "site"), counted(1204, "site")) == (
        "1 January 2026",
        "−0.123",
        "1 site",
        "1,204 sites",
    )


def test_every_metric_is_explained() -> None:
    assert set(_METRICS) == set(METRICS)


def test_a_figure_without_an_interval_or_of_an_unknown_metric_is_still_told() -> None:
    tier = TierPerformance(tier=3, model="global")
    told = figure(tier, Estimate(metric="net_benefit", value=0.1, sites=1, note="one site only"))
    assert (told.metric, told.meaning, told.interval, told.sites) == (
        "net_benefit",
        "",
        "not known",
        "1 site",
    )


def test_expiry_counts_from_the_very_millisecond() -> None:
    entry = Entry(manifest(expires_unix_ms=RELEASED + 10), "0" * 64, 1, may_download=True, withdrawn="")
    assert [bundle_view(entry, RELEASED + later).expired for later in (9, 10)] == [False, True]
