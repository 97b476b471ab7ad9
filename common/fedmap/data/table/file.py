"""Reads the columns a plan names from a CSV or Parquet file, and no others.

A file that cannot be read at all is a `DataError` here; columns that are missing or named twice are returned
as problems, so that they are reported together with whatever else is wrong. Values are neither converted nor
judged. No message quotes the reader's own error: it may hold a patient's value. Nor does one quote the file's
own header: in a file without one, that is a patient's row.
"""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from fedmap.data.table.columns import MISSING_SPELLINGS
from fedmap.errors import DataError

_UNSOUND = "cut off, not UTF-8, an open quotation mark, or rows of unequal length"


@dataclass(frozen=True)
class WantedColumns:
    """What a plan needs of a file."""

    names: tuple[str, ...]
    """Columns by name, each once."""
    text: frozenset[str]
    """Those of them that are kept as they are written: categories, identifiers."""
    prefixes: tuple[tuple[str, int], ...] = ()
    """(prefix, number of columns) of each block."""


@dataclass(frozen=True)
class Table:
    """The wanted columns that the file has, and what was wrong with the rest."""

    frame: pd.DataFrame
    problems: tuple[str, ...]


def read_table(site: str, path: Path, wanted: WantedColumns) -> Table:
    """Reads `<site>.csv` or `<site>.parquet`."""
    header = read_header(site, path)
    present, problems = match_columns(header, wanted)
    if not present:
        raise no_columns(site, path)
    with reading(site, path):
        frame, nested = _read_columns(path, present, wanted.text)
    return Table(frame, (*problems, *(nested_problem(name) for name in nested)))


def read_header(site: str, path: Path) -> list[str]:
    """The names of the file's columns; an empty file is a `DataError`."""
    if path.suffix not in (".csv", ".parquet"):
        raise _unreadable(site, path, "is neither .csv nor .parquet")
    with reading(site, path):
        header = _csv_header(path) if path.suffix == ".csv" else list(pa_parquet.read_schema(path).names)
    if not header:
        raise _unreadable(site, path, "is empty")
    return header


@contextmanager
def reading(site: str, path: Path) -> Iterator[None]:
    """What goes wrong while the file is read becomes a `DataError` that quotes nothing of it."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else "input error"
        raise _unreadable(site, path, f"cannot be read ({reason})") from None
    except (UnicodeDecodeError, csv.Error, pa.ArrowException):
        raise _unreadable(site, path, f"is no sound {path.suffix} file: {_UNSOUND}") from None


def no_columns(site: str, path: Path) -> DataError:
    return _unreadable(
        site, path, "has none of the plan's columns; its first line must name them, with commas"
    )


def nested_problem(name: str) -> str:
    return f"{name}: the column holds lists or records"


def match_columns(header: Iterable[str], wanted: WantedColumns) -> tuple[list[str], tuple[str, ...]]:
    """The usable columns of a header, and what is missing, doubled or miscounted."""
    counts = Counter(header)
    problems: list[str] = []
    present: list[str] = []
    for name in wanted.names:
        if counts[name] == 1:
            present.append(name)
        else:
            problems.append(f"{name}: the column is {'named twice' if counts[name] else 'missing'}")
    for prefix, expected in wanted.prefixes:
        block = [name for name in counts if name.startswith(prefix)]
        doubled = sum(counts[name] > 1 for name in block)
        if doubled:
            problems.append(f"{prefix}: {doubled} columns with this prefix are named twice")
        elif len(block) != expected:
            problems.append(f"{prefix}: {len(block)} columns have this prefix, the plan wants {expected}")
        else:
            present += block
    return present, tuple(problems)


def _unreadable(site: str, path: Path, reason: str) -> DataError:
    return DataError(
        site,
        (f"{path.name} {reason}",),
        hint="Export the site's file again as UTF-8 CSV with a header line, or as Parquet.",
    )


def _csv_header(path: Path) -> list[str]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return next((record for record in csv.reader(file) if record), [])


def _read_columns(path: Path, columns: list[str], text: frozenset[str]) -> tuple[pd.DataFrame, list[str]]:
    """The columns of single values, and the names of those that hold something else (Parquet can)."""
    if not columns:
        return pd.DataFrame(), []
    if path.suffix == ".csv":
        refuse_open_quotes(path)
        table = _read_csv(path, columns, text)
    else:
        table = pa_parquet.read_table(path, columns=columns)
    nested = [field.name for field in table.schema if pa.types.is_nested(field.type)]
    # An index that pandas once stored in the file is a column like any other.
    frame: pd.DataFrame = table.drop_columns(nested).to_pandas(ignore_metadata=True)
    return frame, nested


def refuse_open_quotes(path: Path) -> None:
    """Raises csv.Error where a quotation mark is not closed: the fast reader would swallow rows."""
    with path.open("rb") as file:
        quoted = any(b'"' in chunk for chunk in iter(lambda: file.read(1 << 20), b""))
    if quoted:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            for _ in csv.reader(lines, strict=True):
                pass


def _read_csv(path: Path, columns: list[str], text: frozenset[str]) -> pa.Table:
    return pa_csv.read_csv(
        path,
        parse_options=pa_csv.ParseOptions(newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(
            include_columns=columns,
            column_types={name: pa.string() for name in columns if name in text},
            null_values=list(MISSING_SPELLINGS),
            # Text stays as written: whether "None" is a missing cell or a category is for the plan to say.
            strings_can_be_null=False,
        ),
    )
