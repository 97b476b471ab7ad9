"""Divides a site's rows into training, validation and test parts.

Rows of one patient stay together; outcomes are spread evenly; the result depends on nothing but the plan's
seed, the site's name and the rows. It never fails for want of rows: a part that cannot be filled is empty,
and the caller says so.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedmap.data.table.columns import Column, codes, is_missing
from fedmap.study.plan.sections import SplitSection

Rows = NDArray[np.intp]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Parts:
    """Row numbers of each part, in ascending order."""

    train: Rows
    validation: Rows
    test: Rows


@dataclass(frozen=True)
class Patients:
    """A patient number for each row, counted from zero."""

    numbers: Labels
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class FixedTest:
    """Which rows a column of the file puts into the test part."""

    rows: NDArray[np.bool_]
    problems: tuple[str, ...] = ()


def one_patient_per_row(rows: int) -> Patients:
    """For files without a patient column."""
    return Patients(np.arange(rows, dtype=np.int64))


def read_patients(column: Column, name: str, repeated: bool) -> Patients:
    """Numbers the patients; `repeated` says whether one may have several rows."""
    missing = int(is_missing(column).sum())
    ids = column.str.strip() if pd.api.types.is_string_dtype(column) else column
    found, distinct = pd.factorize(ids)
    problems: list[str] = []
    if missing:
        problems.append(f"{name}: {missing} of {len(column)} rows have no patient")
    several = int((np.bincount(found[found >= 0], minlength=len(distinct)) > 1).sum())
    if several and not repeated:
        problems.append(f"{name}: {several} patients have more than one row, and the plan wants one each")
    return Patients(found.astype(np.int64), tuple(problems))


def read_fixed_test(column: Column, split: SplitSection, patients: Labels) -> FixedTest:
    """Reads the column that says which rows are for testing."""
    train_value, test_value = str(split.train_value), str(split.test_value)
    found = codes(column, (train_value, test_value))
    unknown = found.unknown + int(found.missing.sum())
    in_test = found.values == 1
    problems: list[str] = []
    if unknown:
        problems.append(
            f"{split.column}: {unknown} of {len(column)} values are neither {train_value} nor {test_value}"
        )
    straddling = len(np.intersect1d(patients[in_test], patients[~in_test]))
    if straddling:
        problems.append(f"{split.column}: {straddling} patients have rows in both parts")
    return FixedTest(in_test, tuple(problems))


def draw_parts(
    site: str, split: SplitSection, patients: Labels, stratum: Labels, fixed: FixedTest | None
) -> Parts:
    """Draws the test part, unless it is given, and then the validation part from the rest."""
    if fixed is None:
        test = _draw(patients, stratum, split.test, _generator(split.seed, site, "test"))
    else:
        test = fixed.rows
    rest = np.flatnonzero(~test)
    validation = _draw(
        patients[rest], stratum[rest], split.validation, _generator(split.seed, site, "validation")
    )
    return Parts(train=rest[~validation], validation=rest[validation], test=np.flatnonzero(test))


def all_for_testing(rows: int) -> Parts:
    """A site of tier 3 trains nothing."""
    none = np.zeros(0, dtype=np.intp)
    return Parts(none, none, np.arange(rows, dtype=np.intp))


def _generator(seed: int, site: str, part: str) -> np.random.Generator:
    """Independent draws for each site and part, the same on every machine."""
    digest = hashlib.sha256(f"{seed}\n{part}\n{site}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


def _draw(
    patients: Labels, stratum: Labels, share: float, generator: np.random.Generator
) -> NDArray[np.bool_]:
    """Marks whole patients until `share` of the rows is marked, overall and in each stratum.

    Patients are put in random order within their stratum, rarest stratum first, and the debt of unmarked rows
    is carried along: a patient is marked when at least half of its rows are owed. So the marked share is
    right within one patient everywhere along the line. (A patient's stratum is the highest of its rows: an
    event in any of them.)
    """
    if len(patients) == 0:
        return np.zeros(0, dtype=np.bool_)
    _, group = np.unique(patients, return_inverse=True)
    sizes = np.bincount(group)
    highest = np.full(len(sizes), np.iinfo(np.int64).min)
    np.maximum.at(highest, group, stratum)
    _, kind, kind_counts = np.unique(highest, return_inverse=True, return_counts=True)
    order = np.lexsort((generator.permutation(len(sizes)), kind, kind_counts[kind]))
    marked = np.zeros(len(sizes), dtype=np.bool_)
    owed = 0.0
    for position in order.tolist():
        size = int(sizes[position])
        owed += share * size
        if owed >= size / 2:
            marked[position] = True
            owed -= size
    if len(sizes) == 1:
        marked[0] = False  # one patient alone is for the part the others are drawn from
    elif not marked.any():
        marked[order[-1]] = True
    elif marked.all():
        marked[order[-1]] = False
    return np.asarray(marked[group], dtype=np.bool_)
