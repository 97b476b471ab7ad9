"""100 MB of parameters up and down over mutual TLS, against a bare gRPC byte stream in the same run."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedmap.contract.v1 import federation_pb2 as pb
from fedmap.transport.chunks import byte_chunks
from tests.bench.bare_stream import bare_client, bare_server
from tests.bench.federation import bench_federation

TURNS = 5
# 25.5 million parameters: 102 MB.
PLAN = """
[study]
name = "bench-transfer"
title = "Bench"
[task]
kind = "binary"
label = "y"
classes = [0, 1]
metric = "auroc"
[[features]]
prefix = "x_"
columns = 100
kind = "number"
[model]
name = "mlp"
hidden = [5000, 5000]
[prior]
convex = false
[rounds]
quorum = 1
"""


@dataclass(frozen=True)
class Transfer:
    """Best seconds of each way, in one run, taken in turns."""

    megabytes: float
    wire: float  # bytes sent over tensor bytes
    upload: float  # to the receipt: digest, gate, disk, database
    upload_dropped: float  # bare stream, bytes forgotten
    upload_kept: float  # bare stream into a synced file
    upload_proven: float  # bare stream into a synced file, with its SHA-256
    download: float  # into a checked file
    download_dropped: float
    download_kept: float  # bare stream into a file
    download_proven: float  # bare stream into a file, with its SHA-256


def measure() -> Transfer:
    with bench_federation(PLAN, agents=1, rounds=TURNS + 1) as federation:
        (agent,) = federation.agents
        tensors = agent.prepare("parameters")
        data = tensors.read_bytes()
        federation.start()
        federation.through_preparations()
        best: dict[str, float] = {}

        def timed(name: str, run: Callable[..., object], *arguments: object) -> None:
            began = time.perf_counter()
            run(*arguments)
            best[name] = min(best.get(name, float("inf")), time.perf_counter() - began)

        with (
            bare_server(federation.pki, tensors) as port,
            bare_client(port, federation.sites[0].credentials) as bare,
            tempfile.TemporaryDirectory(dir=federation.folder) as scratch,
        ):
            for turn in range(TURNS + 1):
                task = agent.next_task()
                agent.change("parameters", 0.001 * turn)
                if turn == 1:
                    best.clear()  # the first turn warms up
                folder = Path(scratch) / str(turn)
                folder.mkdir()
                prior = (task.study, task.prior_digest, task.prior_size, folder)
                timed("download_dropped", bare.receive)
                timed("download_kept", bare.receive_into, folder / "bare")
                timed("download_proven", bare.receive_proven, folder / "proven")
                timed("download", agent.connection.fetch_prior, *prior)
                timed("upload_dropped", bare.send, "drop", data)
                timed("upload_kept", bare.send, "keep", data)
                timed("upload_proven", bare.send, "prove", data)
                timed("upload", agent.answer, task)
        return Transfer(len(data) / 1e6, wire_ratio(data), **best)


def wire_ratio(data: bytes) -> float:
    """What goes into the messages, over the tensor bytes (TLS and HTTP/2 framing add under 0.2 %)."""
    sent = sum(len(pb.SubmitAnswerRequest(chunk=c).SerializeToString()) + 5 for c in byte_chunks(data))
    return sent / len(data)
