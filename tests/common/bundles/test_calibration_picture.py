"""The calibration picture: a sound SVG with every point, whatever the bins and the title are."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from fedmap.bundles.card.picture import calibration_svg
from fedmap.scoring.figures import CalibrationBin

SVG = "{http://www.w3.org/2000/svg}"
_SHARE = st.floats(0, 1)


@st.composite
def a_bin(draw: st.DrawFn) -> CalibrationBin:
    low, observed, high = sorted(draw(st.tuples(_SHARE, _SHARE, _SHARE)))
    return CalibrationBin(
        predicted=draw(_SHARE), observed=observed, low=low, high=high, rows=draw(st.integers(0, 10**7))
    )


def one(predicted: float, observed: float, rows: int = 100) -> CalibrationBin:
    return CalibrationBin(
        predicted=predicted,
        observed=observed,
        low=max(0.0, observed - 0.01),
        high=min(1.0, observed + 0.01),
        rows=rows,
    )


@given(st.lists(a_bin(), max_size=14), st.text(max_size=300))
def test_any_bins_and_title_give_a_sound_picture_inside_its_frame(
    bins: list[CalibrationBin], title: str
) -> None:
    root = ElementTree.fromstring(calibration_svg(bins, title))
    shown = [found for found in bins if found.rows]
    circles = root.findall(f"{SVG}circle")
    assert len(circles) == len(shown)
    for circle in circles:
        assert 70 <= float(circle.attrib["cx"]) <= 500
        assert 60 <= float(circle.attrib["cy"]) <= 490
    for line in root.findall(f"{SVG}line"):
        assert all(0 <= float(line.attrib[name]) <= 620 for name in ("x1", "x2", "y1", "y2"))
    for bar in root.findall(f"{SVG}rect"):
        assert float(bar.attrib["width"]) > 0
        assert float(bar.attrib["height"]) > 0


def test_perfect_calibration_lies_on_the_diagonal() -> None:
    bins = [one(share, share) for share in (0.1, 0.4, 0.9)]
    root = ElementTree.fromstring(calibration_svg(bins, "x"))
    for circle in root.findall(f"{SVG}circle"):
        across = (float(circle.attrib["cx"]) - 72) / 424
        up = (488 - float(circle.attrib["cy"])) / 424
        assert abs(across - up) < 1e-3


def test_small_risks_are_shown_large() -> None:
    marks = [text.text for text in ElementTree.fromstring(calibration_svg([one(0.01, 0.02)], "x")).iter()]
    assert "5 %" in marks
    assert "100 %" not in marks


def test_picture_is_told_in_words_too() -> None:
    described = ElementTree.fromstring(calibration_svg([one(0.1, 0.12)], "x")).find(f"{SVG}desc")
    assert described is not None
    assert "predicted 10.0%, observed 12.0% (11.0% to 13.0%), 100 rows" in (described.text or "")


def test_picture_without_bins_says_so() -> None:
    assert "Too few rows for a curve." in calibration_svg([], "x")


def test_title_is_text_and_never_markup() -> None:
    picture = calibration_svg([one(0.1, 0.1)], "</title><script>alert(1)</script>")
    assert "<script" not in picture
    assert ElementTree.fromstring(picture).find(f"{SVG}title") is not None


def test_picture_needs_nothing_from_elsewhere() -> None:
    picture = calibration_svg([one(0.1, 0.1)], "x")
    assert picture.count("http") == 1  # the name of the SVG namespace
    assert "style" not in picture
    assert "href" not in picture
