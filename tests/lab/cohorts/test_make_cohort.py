"""The cohort directory: shape, determinism, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedmap.errors import FedmapError
from fedmap_lab.cohorts.making import COHORTS, CohortSummary, cohort_directory, make_cohort

SMALL = {"cprd": 0.001, "interval": 0.02, "eicu": 0.001}
NAMES = pytest.mark.parametrize("name", list(SMALL))


def read_site(path: Path) -> pd.DataFrame:
    return pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)


@dataclass(frozen=True)
class Made:
    summary: CohortSummary
    heard: list[tuple[int, int]]


def _note(heard: list[tuple[int, int]], done: int, total: int) -> None:
    heard.append((done, total))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    found = {}
    for name, scale in SMALL.items():
        heard: list[tuple[int, int]] = []
        out = tmp_path_factory.mktemp("cohorts") / name
        summary = make_cohort(name, out, scale, 7, partial(_note, heard))
        found[name] = Made(summary, heard)
    return found


@NAMES
def test_the_directory_holds_the_index_and_one_file_per_site(name: str, made: dict[str, Made]) -> None:
    out = made[name].summary.directory
    index = pd.read_csv(out / "sites.csv")
    assert list(index.columns) == ["site", "tier", "region"]
    assert index["tier"].tolist() == [1, 1, 1, 2, 3]
    suffix = COHORTS[name].file_format
    assert {p.name for p in out.iterdir()} == {
        "sites.csv",
        "cohort.json",
        *(f"{site}.{suffix}" for site in index["site"]),
    }
    assert [p.name for p in out.parent.iterdir()] == [name]


@NAMES
def test_progress_is_heard_after_each_site(name: str, made: dict[str, Made]) -> None:
    assert made[name].heard == [(done, 5) for done in range(1, 6)]


@NAMES
def test_files_hold_what_the_generator_made(name: str, made: dict[str, Made]) -> None:
    generator, summary = COHORTS[name], made[name].summary
    total = 0
    for site in generator.plan(SMALL[name], 7):
        frame = generator.make_site(site).frame.reset_index(drop=True)
        read = read_site(summary.directory / f"{site.site}.{generator.file_format}")
        pd.testing.assert_frame_equal(read, frame, check_dtype=False)
        total += len(read)
    assert total == summary.rows + summary.excluded_rows


@NAMES
def test_the_same_seed_gives_the_same_bytes(name: str, made: dict[str, Made], tmp_path: Path) -> None:
    again = make_cohort(name, tmp_path / "again", SMALL[name], 7)
    for path in made[name].summary.directory.iterdir():
        assert path.read_bytes() == (again.directory / path.name).read_bytes(), path.name


@NAMES
def test_two_seeds_make_different_patients_at_a_site_of_the_same_name(name: str) -> None:
    generator = COHORTS[name]
    first, second = (generator.make_site(generator.plan(SMALL[name], seed)[0]) for seed in (0, 1))
    assert first.site.site == second.site.site
    assert not np.array_equal(first.candidates[:40], second.candidates[:40])


def test_the_description_holds_numbers_of_the_cohort_and_nothing_of_a_patient(tmp_path: Path) -> None:
    summary = make_cohort("interval", tmp_path / "c", 0.02, 3)
    described = json.loads((tmp_path / "c" / "cohort.json").read_text(encoding="utf-8"))
    assert set(described) == {
        *("generator", "version", "seed", "scale", "sites", "rows", "excluded_rows"),
        *("most_predictive_feature", "heterogeneity"),
    }
    assert (described["seed"], described["scale"], described["rows"]) == (3, 0.02, summary.rows)
    assert len(described["heterogeneity"]) == len(summary.heterogeneity.rows)
    for row in described["heterogeneity"]:
        assert set(row) == {"quantity", "target", "measured"}


def test_a_former_synthetic_cohort_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "c"
    make_cohort("cprd", out, 0.001, 0)
    make_cohort("interval", out, 0.02, 0)
    assert sorted(p.stem for p in out.glob("*.csv")) == sorted(
        ["sites", *(site.site for site in COHORTS["interval"].plan(0.02, 0))]
    )


def _in_the_place(out: Path) -> None:
    out.write_text("mine")


def _in_a_folder(out: Path) -> None:
    out.mkdir()
    (out / "notes.txt").write_text("mine")


def _in_a_cohort(out: Path) -> None:
    make_cohort("interval", out, 0.02, 0)
    (out / "results.csv").write_text("mine")


@pytest.mark.parametrize(
    ("put", "said"),
    [(_in_the_place, "not a directory"), (_in_a_folder, "not empty"), (_in_a_cohort, "1 other file")],
)
def test_what_is_no_synthetic_cohort_is_refused_and_left_alone(
    tmp_path: Path, put: Callable[[Path], None], said: str
) -> None:
    out = tmp_path / "c"
    put(out)
    before = {path: path.is_file() and path.read_bytes() for path in (out, *out.rglob("*"))}
    with pytest.raises(FedmapError, match=said) as caught:
        make_cohort("interval", out, 0.02, 0)
    assert caught.value.hint
    assert {path: path.is_file() and path.read_bytes() for path in (out, *out.rglob("*"))} == before


def test_a_failure_while_writing_leaves_the_former_cohort_and_no_rest(tmp_path: Path) -> None:
    out = tmp_path / "c"
    make_cohort("interval", out, 0.02, 0)
    before = (out / "sites.csv").read_bytes()

    def fail(done: int, total: int) -> None:
        raise KeyboardInterrupt(f"stopped after {done} of {total}")

    with pytest.raises(KeyboardInterrupt):
        make_cohort("interval", out, 0.02, 1, fail)
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
    assert (out / "sites.csv").read_bytes() == before


def test_a_half_made_cohort_never_takes_its_place(tmp_path: Path) -> None:
    def half() -> None:
        with cohort_directory(tmp_path / "c") as directory:
            (directory / "site.csv").write_text("x", encoding="utf-8")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        half()
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_cohort_is_refused_with_the_known_names(tmp_path: Path) -> None:
    with pytest.raises(FedmapError, match="mimic") as caught:
        make_cohort("mimic", tmp_path / "c")
    assert "cprd, interval, eicu" in caught.value.hint


def test_a_negative_seed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FedmapError, match="seed"):
        make_cohort("interval", tmp_path / "c", seed=-1)
