"""Named tensors as safetensors bytes, read strictly: exactly the expected names, shapes and types, finite.

Writing is the library's. Reading looks at the header itself, because the library neither refuses what was
not expected (further tensors, free text in the metadata) nor hands out views without a copy of each tensor.
What the tensors mean is in `parameter_files`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from errno import EIO
from io import FileIO
from math import isfinite, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from fedmap.errors import ModelError
from fedmap.files.durable import storage_errors

if TYPE_CHECKING:
    from torch import Tensor

TypeName = Literal["F32", "F64", "I64"]
Array = NDArray[Any]  # of one of the types above

_TYPES: Mapping[TypeName, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "I64": np.dtype("<i8"),
}
_LENGTH = 8  # bytes that say how long the header is
_HEADER_LIMIT = 8 << 20
_HEADER_PER_NAME = 512
_NAMED = 3
_PIECE = 1 << 20  # bytes
_HINT = "check that both sides use the same study plan, model and version; send the file again if it was cut"


@dataclass(frozen=True)
class Expected:
    """Type and shape of one tensor."""

    dtype: TypeName
    shape: tuple[int, ...]


def encode_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """The same values always give the same bytes."""
    data: bytes = safetensors.numpy.save({name: tensor.numpy() for name, tensor in tensors.items()})
    return data


def decode_tensors(source: bytes | Path, expected: Mapping[str, Expected], what: str) -> dict[str, Array]:
    """The expected tensors as read-only views of the bytes; `what` names the file in errors."""
    data = file_bytes(source)
    header, start = _header(data, what)
    arrays: dict[str, Array] = {}
    for name, (begin, _) in _places(header, expected, len(data) - start, what).items():
        wanted = expected[name]
        dtype = _TYPES[wanted.dtype]
        array = np.frombuffer(data, dtype=dtype, count=prod(wanted.shape), offset=start + begin)
        if wanted.dtype != "I64" and not bool(np.isfinite(array).all()):
            raise _not_finite(what, name)
        arrays[name] = array.reshape(wanted.shape)
    return arrays


def tensor_names(data: bytes, what: str) -> frozenset[str]:
    """The names in a file's head, for files that may hold one set of tensors or another."""
    header, _ = _header(data, what)
    return frozenset(header)


def head_size(start: bytes) -> int:
    """How many bytes `check_layout` wants, by the first ones of a file; bounded, whatever they say."""
    return _LENGTH + min(int.from_bytes(start[:_LENGTH], "little"), _HEADER_LIMIT)


def check_layout(head: bytes, size: int, expected: Mapping[str, Expected], what: str) -> None:
    """Names, types, shapes and places by the head of a file of `size` bytes; its values are not looked at."""
    header, start = _header(head, what)
    _places(header, expected, size - start, what)


def most_bytes(expected: Mapping[str, Expected]) -> int:
    """How large a file of these tensors can be."""
    values = sum(prod(one.shape) * _TYPES[one.dtype].itemsize for one in expected.values())
    return values + _HEADER_PER_NAME * (len(expected) + 1)


@dataclass(frozen=True)
class Scan:
    """What a look through a file found."""

    squares: Mapping[str, float]  # sum of squares of each tensor
    kept: Mapping[str, Array]  # those that were asked for


def scan_tensors(path: Path, expected: Mapping[str, Expected], what: str, keep: Collection[str] = ()) -> Scan:
    """As strict as `decode_tensors`, on a file that is never in memory as a whole.

    Types F32 and I64 only: a square of either is finite in float64, so one that is not tells of its value.
    """
    with storage_errors(path), path.open("rb", buffering=0) as file:
        size = path.stat().st_size
        length = int.from_bytes(file.read(_LENGTH), "little")
        file.seek(0)
        header, start = _header(file.read(_LENGTH + min(length, _HEADER_LIMIT)), what)
        piece = bytearray(_PIECE)
        squares: dict[str, float] = {}
        kept: dict[str, Array] = {}
        for name, (begin, end) in _places(header, expected, size - start, what).items():
            file.seek(start + begin)
            squares[name] = _square(file, piece, end - begin, _TYPES[expected[name].dtype])
            if not isfinite(squares[name]):
                raise _not_finite(what, name)
            if name in keep:
                file.seek(start + begin)
                kept[name] = np.frombuffer(file.read(end - begin), _TYPES[expected[name].dtype])
        return Scan(squares, kept)


def _square(file: FileIO, piece: bytearray, size: int, dtype: np.dtype[Any]) -> float:
    """Of the next `size` bytes, in float64, a piece at a time."""
    total, left = 0.0, size
    view = memoryview(piece)
    values = np.frombuffer(piece, dtype=dtype)
    wide = np.empty(len(values))  # one for all pieces: fresh memory would cost as much as the sum
    while left:
        got = file.readinto(view[: min(left, len(piece))])
        if not got or got % dtype.itemsize:
            raise OSError(EIO, "the file ended or was cut while it was read")
        part = wide[: got // dtype.itemsize]
        with np.errstate(invalid="ignore", over="ignore"):
            part[:] = values[: len(part)]
            total += float(np.dot(part, part))
        left -= got
    return total


def _places(
    header: Mapping[str, object], expected: Mapping[str, Expected], size: int, what: str
) -> dict[str, tuple[int, int]]:
    """Where each tensor begins and ends in the `size` bytes after the header, which they fill."""
    _check_names(header, expected, what)
    places: dict[str, tuple[int, int]] = {}
    for name, wanted in expected.items():
        begin, end = _place(header[name], name, wanted, what)
        if end - begin != prod(wanted.shape) * _TYPES[wanted.dtype].itemsize or end > size:
            raise _refused(what, f"{name} has the wrong number of bytes")
        places[name] = begin, end
    _check_tiling(list(places.values()), size, what)
    return places


def file_bytes(source: bytes | Path) -> bytes:
    """What is in a file, or was read from it already."""
    if isinstance(source, bytes):
        return source
    with storage_errors(source):
        return source.read_bytes()


def _header(data: bytes, what: str) -> tuple[dict[str, object], int]:
    """The header's entries, and where the values start."""
    length = int.from_bytes(data[:_LENGTH], "little")
    if len(data) < _LENGTH or length > min(len(data) - _LENGTH, _HEADER_LIMIT):
        raise _refused(what, "this is no safetensors file, or it was cut off")
    try:
        header = json.loads(data[_LENGTH : _LENGTH + length])
    except (ValueError, RecursionError):
        raise _refused(what, "this is no safetensors file: its header cannot be read") from None
    if not isinstance(header, dict):
        raise _refused(what, "this is no safetensors file: its header is no table")
    return header, _LENGTH + length


def _check_names(header: Mapping[str, object], expected: Mapping[str, Expected], what: str) -> None:
    missing = [name for name in expected if name not in header]
    unknown = [name for name in header if name not in expected]
    faults = [f"{words} {_some(names)}" for words, names in (("lacks", missing), ("adds", unknown)) if names]
    if faults:
        raise _refused(what, " and ".join(faults))


def _place(entry: object, name: str, wanted: Expected, what: str) -> tuple[int, int]:
    """Where a tensor begins and ends, if its type and shape are as expected."""
    match entry:
        case {"dtype": dtype, "shape": list(shape), "data_offsets": [int(begin), int(end)], **rest} if (
            not rest
        ):
            if dtype != wanted.dtype:
                raise _refused(what, f"{name} is not of type {wanted.dtype}")
            if tuple(shape) != wanted.shape:
                raise _refused(what, f"{name} is not of shape {wanted.shape}")
            if 0 <= begin <= end:
                return begin, end
    raise _refused(what, f"{name} has an unreadable entry in the header")


def _check_tiling(places: list[tuple[int, int]], size: int, what: str) -> None:
    """Tensors must cover the values without gap or overlap: nothing can hide between them."""
    at = 0
    for begin, end in sorted(places):
        if begin != at:
            raise _refused(what, "tensors overlap or leave a gap")
        at = end
    if at != size:
        raise _refused(what, "there are bytes that belong to no tensor")


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(name[:80]) for name in names[:_NAMED])
    return shown + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _not_finite(what: str, name: str) -> ModelError:
    return _refused(what, f"{name} holds a value that is not finite")


def _refused(what: str, fault: str) -> ModelError:
    return ModelError(f"{what}: {fault}", hint=_HINT)
