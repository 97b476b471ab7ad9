"""Tables as CSV files: each written whole, and read back; what is wrong is said with file and line."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedmap.errors import FedmapError
from fedmap.files.durable import read_file, write_durably

Row = Sequence[object]
HINT = "give a folder as `fedmap-lab` wrote it; if it is one, make it again (compare resumes where it was)"


@dataclass(frozen=True)
class Line:
    """Where a cell stands, for the message when it is no number."""

    path: Path
    number_of: int

    def number(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise FedmapError(f"{self.path}, line {self.number_of}: a number is expected", hint=HINT)
        return value

    def whole(self, text: str) -> int:
        value = self.number(text)
        if value != int(value):
            raise FedmapError(f"{self.path}, line {self.number_of}: a whole number is expected", hint=HINT)
        return int(value)

    def count(self, text: str) -> int:
        value = self.whole(text)
        if value < 0:
            raise FedmapError(f"{self.path}, line {self.number_of}: a count is below zero", hint=HINT)
        return value

    def tier(self, text: str) -> int:
        value = self.whole(text)
        if value not in (1, 2, 3):
            raise FedmapError(f"{self.path}, line {self.number_of}: the tier must be 1, 2 or 3", hint=HINT)
        return value


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[Line, Mapping[str, str]]]:
    try:
        reader = csv.DictReader(io.StringIO(read_file(path).decode("utf-8"), newline=""))
    except UnicodeDecodeError as error:
        raise FedmapError(f"{path} is no UTF-8 text", hint=HINT) from error
    missing = [name for name in columns if name not in (reader.fieldnames or ())]
    if missing:
        raise FedmapError(f"{path} lacks the column {', '.join(missing)}", hint=HINT)
    for row in reader:
        if any(row[name] is None for name in columns):
            raise FedmapError(f"{path}, line {reader.line_num} was cut off", hint=HINT)
        yield Line(path, reader.line_num), row


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """None is an empty cell."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    write_durably(path, text.getvalue().encode(), mode=0o644)
