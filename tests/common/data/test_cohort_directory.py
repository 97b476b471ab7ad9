"""Cohort directories: the list of sites, its files, and every way they can disagree."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmap.data.cohort_directory import SiteEntry, read_cohort_directory
from fedmap.errors import DataError


def cohort(directory: Path, listed: str, *files: str) -> Path:
    (directory / "sites.csv").write_text(listed, encoding="utf-8")
    for file in files:
        (directory / file).touch()
    return directory


def problems(directory: Path) -> tuple[str, ...]:
    with pytest.raises(DataError) as caught:
        read_cohort_directory(directory)
    return caught.value.problems


def test_the_sites_are_read_sorted_with_their_files(tmp_path: Path) -> None:
    listed = "\ufeffregion,site,tier\nLondon,b, 2\n,a,1\n"
    assert read_cohort_directory(cohort(tmp_path, listed, "a.csv", "b.parquet")) == (
        SiteEntry("a", 1, "", tmp_path / "a.csv"),
        SiteEntry("b", 2, "London", tmp_path / "b.parquet"),
    )


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    assert problems(tmp_path / "none") == ("there is no such directory",)


NO_NAME = "sites.csv, entry 1: the site's name must be a plain file name"


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ("site\na\n", ["sites.csv has no column tier", "sites.csv has no column region"]),
        ("site,tier,region\n", ["sites.csv lists no site"]),
        ("site,tier,region", ["sites.csv lists no site"]),
        *(
            (f'site,tier,region\n"{name}",1,x\n', [NO_NAME])
            for name in ("../a", "a/b", "a\\b", ".hidden", "", "C:a", "a\tb")
        ),
        ("site,tier,region\nsites,1,x\n", ["sites: has no file"]),  # the list itself is no site
        ("site,tier,region\na\n", ["a: the tier must be 1, 2 or 3"]),
        (
            "site,tier,region\na,4,x\nb,1,x\nb,1,x\nc,1,x\nd,,x\n",
            [
                "a: the tier must be 1, 2 or 3",
                "c: has no file",
                "d: the tier must be 1, 2 or 3",
                "d: has both a .csv and a .parquet file",
                "b: listed 2 times",
            ],
        ),
    ],
)
def test_everything_wrong_with_a_list_comes_out_at_once(
    tmp_path: Path, listed: str, expected: list[str]
) -> None:
    files = ("a.csv", "b.csv", "d.csv", "d.parquet")
    assert list(problems(cohort(tmp_path, listed, *files))) == expected


def test_a_missing_list_is_refused(tmp_path: Path) -> None:
    assert problems(tmp_path) == ("sites.csv is missing",)


def test_a_list_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sites.csv").write_bytes(b"site,tier,region\n\xff,1,x\n")
    assert problems(tmp_path) == ("sites.csv cannot be read as UTF-8 CSV",)
