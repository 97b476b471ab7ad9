"""Reading files: what is tolerated, what is refused, and that no reader's own words get out."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest

from fedmap.data.table.file import Table, WantedColumns, read_table
from fedmap.errors import DataError

WANTED = WantedColumns(names=("age", "sex"), text=frozenset({"sex"}))
SECRET = "Ermengarde-4711"


def read_csv(tmp_path: Path, content: bytes, wanted: WantedColumns = WANTED) -> Table:
    path = tmp_path / "north.csv"
    path.write_bytes(content)
    return read_table("north", path, wanted)


def refused(tmp_path: Path, content: bytes, name: str = "north.csv") -> str:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_table("north", path, WANTED)
    return str(caught.value)


def test_only_the_wanted_columns_are_kept(tmp_path: Path) -> None:
    table = read_csv(tmp_path, b"note,age,sex\nx,40,F\ny,50,M\n")
    assert list(table.frame.columns) == ["age", "sex"]
    assert table.frame["age"].tolist() == [40, 50]
    assert table.problems == ()


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbfage,sex\n40,F\n",
        b"age,sex\r\n40,F\r\n",
        b"\nage,sex\n\n40,F\n\n",
        b'"age","sex"\n"40","F"',
        b'age,sex,note\n40,F,"two\nlines"\n',
        b"age,sex,note,note\n40,F,a,b\n",
    ],
    ids=["byte order mark", "windows", "blank lines", "quotes", "line break in a cell", "other column twice"],
)
def test_the_usual_spellings_of_csv_are_read(tmp_path: Path, content: bytes) -> None:
    table = read_csv(tmp_path, content)
    assert table.frame["age"].astype(float).tolist() == [40.0]
    assert table.frame["sex"].tolist() == ["F"]


def test_text_columns_keep_what_is_written(tmp_path: Path) -> None:
    table = read_csv(tmp_path, b"age,sex\n1,007\n2,None\n3,\n")
    assert table.frame["sex"].tolist() == ["007", "None", ""]


def test_missing_and_doubled_columns_are_all_named(tmp_path: Path) -> None:
    wanted = WantedColumns(("age", "sex", "sbp"), frozenset(), (("drug_", 3), ("dx_", 2)))
    table = read_csv(tmp_path, b"age,sex,age,drug_a,drug_b,dx_a,dx_a\n1,2,3,4,5,6,7\n", wanted)
    assert table.problems == (
        "age: the column is named twice",
        "sbp: the column is missing",
        "drug_: 2 columns have this prefix, the plan wants 3",
        "dx_: 1 columns with this prefix are named twice",
    )


@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_an_empty_file_is_refused(tmp_path: Path, content: bytes) -> None:
    assert "north.csv is empty" in refused(tmp_path, content)


@pytest.mark.parametrize(
    "content",
    [
        f"age,sex\n40,F,{SECRET}\n".encode(),
        f"age,sex,note\n{SECRET},F\n".encode(),
        f'age,sex\n40,"{SECRET}\n'.encode(),
        f'age,sex,note\n40,F,"{SECRET}\n41,F,x\n42,F,"y\n'.encode(),
        f"age,sex\n40,{SECRET}\xff\n".encode("latin-1"),
        f"age,sex\n40,{SECRET}\n".encode("utf-16"),
    ],
    ids=["too many cells", "too few cells", "open quote", "two open quotes", "latin-1", "utf-16"],
)
def test_a_malformed_csv_is_refused_without_its_content(tmp_path: Path, content: bytes) -> None:
    message = refused(tmp_path, content)
    assert "north.csv is no sound .csv file" in message
    assert SECRET not in message


def test_a_file_without_header_is_refused_without_its_first_row(tmp_path: Path) -> None:
    message = refused(tmp_path, f"{SECRET},F\n50,M\n".encode())
    assert "none of the plan's columns" in message
    assert SECRET not in message


@pytest.mark.parametrize("content", [b"", b"not parquet at all"])
def test_a_broken_parquet_file_is_refused(tmp_path: Path, content: bytes) -> None:
    assert "north.parquet is no sound .parquet file" in refused(tmp_path, content, "north.parquet")


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    assert "neither .csv nor .parquet" in refused(tmp_path, b"age,sex\n", "north.xlsx")


@pytest.mark.parametrize("name", ["gone.csv", "gone.parquet"])
def test_a_file_that_is_not_there_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"gone\.\w+ cannot be read \(No such file"):
        read_table("north", tmp_path / name, WANTED)


def test_parquet_is_read_with_an_index_and_dotted_names(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"sex": pd.Categorical(["F", "M"]), "code.9": [1.0, None]}, index=pd.Index([40, 50], name="age")
    )
    frame.to_parquet(tmp_path / "north.parquet")
    wanted = WantedColumns(names=("age", "sex", "code.9"), text=frozenset({"sex"}))
    table = read_table("north", tmp_path / "north.parquet", wanted)
    assert table.problems == ()
    assert table.frame["age"].tolist() == [40, 50]
    assert table.frame["sex"].tolist() == ["F", "M"]


def test_a_parquet_column_of_lists_is_refused_by_name(tmp_path: Path) -> None:
    pa_parquet.write_table(pa.table({"age": [[1, 2], [3]], "sex": ["F", "M"]}), tmp_path / "north.parquet")
    table = read_table("north", tmp_path / "north.parquet", WANTED)
    assert table.problems == ("age: the column holds lists or records",)
    assert list(table.frame.columns) == ["sex"]
