"""100 MB of parameters up and down over mutual TLS, against a bare gRPC byte stream in the same run."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fedmap.transport.chunks import byte_chunks, tensors_part
from tests.bench.bare_stream import bare_client, bare_server
from tests.bench.federation import bench_federation
from tests.bench.rows import Row

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
hidden = [WIDTH, WIDTH]
[prior]
convex = false
[rounds]
quorum = 1
"""


def plan(width: int) -> str:
    return PLAN.replace("WIDTH", str(width))


def measure(width: int = 5_000, turns: int = 5) -> Iterator[Row]:
    """25.5 million parameters, 102 MB, in each turn."""
    with bench_federation(plan(width), agents=1, rounds=turns + 1) as federation:
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
            for turn in range(turns + 1):
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
    # ADR 0030 says why the streams that also prove their bytes are the ones to be held against.
    for way, kept in (("upload", "synced file"), ("download", "file")):
        ours = best[way]
        proven, plain = best[f"{way}_proven"] / ours, best[f"{way}_dropped"] / ours
        yield Row(f"{way} against a bare stream with SHA-256 and {kept}", proven, 0.7, at_least=True)
        yield Row(f"{way} against a bare stream into a {kept}", best[f"{way}_kept"] / ours)
        yield Row(f"{way} against a bare gRPC stream: same bytes, no checks, forgotten", plain)
    yield Row("bytes in messages against tensor bytes", wire_ratio(data), 1.02)


def wire_ratio(data: bytes) -> float:
    """What goes into the messages, over the tensor bytes (TLS and HTTP/2 framing add under 0.2 %)."""
    sent = sum(len(tensors_part(c)) + 5 for c in byte_chunks(data))
    return sent / len(data)
