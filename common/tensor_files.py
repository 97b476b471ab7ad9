"""Named tensors as safetensors bytes, read strictly: exactly the expected names, shapes and types, finite.

Writing is the library's. Reading looks at the header itself, because the library neither refuses what was
not expected (further tensors, free text in the metadata) nor hands out views without a copy of each tensor.
What the tensors mean is in `parameter_files`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from torch import Tensor

from common.durable_files import storage_error
from common.errors import ModelError

TypeName = Literal["F32", "F64", "I64"]
Array = NDArray[Any]  # of one of the types above

_TYPES: Mapping[TypeName, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "I64": np.dtype("<i8"),
}
_LENGTH = 8  # bytes that say how long the header is
_HEADER_LIMIT = 8 << 20
_NAMED = 3
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
    data = _bytes(source)
    header, start = _header(data, what)
    _check_names(header, expected, what)
    arrays: dict[str, Array] = {}
    places: list[tuple[int, int]] = []
    for name, wanted in expected.items():
        begin, end = _place(header[name], name, wanted, what)
        dtype = _TYPES[wanted.dtype]
        if end - begin != prod(wanted.shape) * dtype.itemsize or start + end > len(data):
            raise _refused(what, f"{name} has the wrong number of bytes")
        places.append((begin, end))
        array = np.frombuffer(data, dtype=dtype, count=prod(wanted.shape), offset=start + begin)
        if wanted.dtype != "I64" and not bool(np.isfinite(array).all()):
            raise _refused(what, f"{name} holds a value that is not finite")
        arrays[name] = array.reshape(wanted.shape)
    _check_tiling(places, len(data) - start, what)
    return arrays


def _bytes(source: bytes | Path) -> bytes:
    if isinstance(source, bytes):
        return source
    try:
        return source.read_bytes()
    except OSError as error:
        raise storage_error(error, source) from error


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


def _refused(what: str, fault: str) -> ModelError:
    return ModelError(f"{what}: {fault}", hint=_HINT)
