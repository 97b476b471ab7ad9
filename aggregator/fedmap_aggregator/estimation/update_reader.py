"""Updates from disk, fast: what one header proves about a file holds for every file with the same header.

The first file of a layout is read strictly (`parameter_files`). A later one of the same length and with the
very same header has the same names, shapes and types, so only its values are read. Whether θ is finite is
checked where it is summed; the digest of a blob is checked when it arrives.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedmap.algorithm.model.layers import Buffers
from fedmap.algorithm.model.network import Network
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.errors import ModelError
from fedmap.files.durable import storage_errors
from fedmap.study.tensors.parameter_files import decode_parameters

_LENGTH = 8  # bytes that say how long the header is
_LAYOUTS = 16  # kept at once; sites that run one version have one
Span = tuple[int, int]


@dataclass(frozen=True)
class _Layout:
    """Where things stand in a file, in units of four bytes from the end of its header."""

    theta: tuple[Span, ...]  # in the order of the flat vector
    mean: Span
    variance: Span
    count: Span


class UpdateReader:
    """Reads updates of one model, one at a time: every file goes through the same memory."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._no_buffers = network.initial_buffers()
        self._layouts: dict[tuple[int, bytes], _Layout] = {}
        self._memory = bytearray()

    def read(self, path: Path, what: str) -> SiteParameters:
        """`what` names the file in errors."""
        data = self._fetch(path)
        start = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
        header = bytes(data[_LENGTH:start])
        layout = self._layouts.get((len(data), header))
        if layout is None:
            parameters = decode_parameters(self._network, bytes(data), what)
            if len(self._layouts) < _LAYOUTS:
                self._layouts[len(data), header] = self._layout(header)
            return parameters
        values = np.frombuffer(data[start:], dtype="<f4")
        theta = torch.from_numpy(np.concatenate([values[begin:end] for begin, end in layout.theta]))
        return SiteParameters(theta, self._buffers(values, layout, what))

    def _fetch(self, path: Path) -> memoryview:
        """The file's bytes, good until the next file."""
        with storage_errors(path), path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size > len(self._memory):
                self._memory = bytearray(size)
            data = memoryview(self._memory)[:size]
            done = 0
            while count := file.readinto(data[done:]):
                done += count
        return data[:done]

    def _layout(self, header: bytes) -> _Layout:
        """Of a header that a strict reading has found sound: all types are of four bytes or eight."""
        places = {
            name: (entry["data_offsets"][0] // 4, entry["data_offsets"][1] // 4)
            for name, entry in json.loads(header).items()
        }
        buffers = [places.get(f"buffers.{name}", (0, 0)) for name in ("mean", "variance", "count")]
        return _Layout(tuple(places[name] for name in self._network.spec.names), *buffers)

    def _buffers(self, values: NDArray[np.float32], layout: _Layout, what: str) -> Buffers:
        if not self._network.channels:
            return self._no_buffers
        mean, variance, count = (
            torch.from_numpy(values[begin:end].copy())
            for begin, end in (layout.mean, layout.variance, layout.count)
        )
        batches = count.view(torch.int64)
        if bool((batches < 0).any()):
            raise ModelError(f"{what}: buffers.count is negative somewhere", hint="reject the update")
        return Buffers(mean, variance, batches)
