"""Updates from disk, fast: what one header proves about a file holds for every file with the same header.

The first file of a layout is read strictly (`parameter_files`). A later one of the same length and with the
very same header has the same names, shapes and types, so only its values are read. Whether θ is finite is
checked where it is summed; the digest of a blob is checked when it arrives.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from common.algorithm.aggregation import SiteParameters
from common.algorithm.layers import Buffers
from common.algorithm.network import Network
from common.durable_files import read_file
from common.errors import ModelError
from common.parameter_files import decode_parameters

_LENGTH = 8  # bytes that say how long the header is
_LAYOUTS = 16  # kept at once; sites that run one version have one
Span = tuple[int, int]


@dataclass(frozen=True)
class _Layout:
    """Where things stand in a file, in bytes from the end of its header."""

    theta: tuple[Span, ...]  # in the order of the flat vector
    mean: Span
    variance: Span
    count: Span


class UpdateReader:
    """Reads updates of one model."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._no_buffers = network.initial_buffers()
        self._layouts: dict[tuple[int, bytes], _Layout] = {}

    def read(self, path: Path, what: str) -> SiteParameters:
        """`what` names the file in errors."""
        data = read_file(path)
        start = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
        header = data[_LENGTH:start]
        layout = self._layouts.get((len(data), header))
        if layout is None:
            parameters = decode_parameters(self._network, data, what)
            if len(self._layouts) < _LAYOUTS:
                self._layouts[len(data), header] = self._layout(header)
            return parameters
        parts = [_floats(data, start, span) for span in layout.theta]
        theta = torch.from_numpy(np.concatenate(parts))
        return SiteParameters(theta, self._buffers(data, start, layout, what))

    def _layout(self, header: bytes) -> _Layout:
        """Of a header that a strict reading has found sound."""
        entries = json.loads(header)
        spans = {
            name: (entry["data_offsets"][0], entry["data_offsets"][1]) for name, entry in entries.items()
        }
        buffers = [spans.get(f"buffers.{name}", (0, 0)) for name in ("mean", "variance", "count")]
        return _Layout(tuple(spans[name] for name in self._network.spec.names), *buffers)

    def _buffers(self, data: bytes, start: int, layout: _Layout, what: str) -> Buffers:
        if not self._network.channels:
            return self._no_buffers
        mean = torch.from_numpy(_floats(data, start, layout.mean).copy())
        variance = torch.from_numpy(_floats(data, start, layout.variance).copy())
        begin, end = layout.count
        count = np.frombuffer(data, dtype="<i8", count=(end - begin) // 8, offset=start + begin)
        if bool((count < 0).any()):
            raise ModelError(f"{what}: buffers.count is negative somewhere", hint="reject the update")
        return Buffers(mean, variance, torch.from_numpy(count.copy()))


def _floats(data: bytes, start: int, span: Span) -> NDArray[np.float32]:
    begin, end = span
    return np.frombuffer(data, dtype="<f4", count=(end - begin) // 4, offset=start + begin)
