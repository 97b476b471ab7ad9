"""A whole round without training, everything durable, against a bare exchange of the same bytes.

Ten agents fetch the prior and send 223,002 parameters each (the eICU network), side by side.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from fedmap.contract.v1 import values
from tests.bench.bare_agent import BareAgent
from tests.bench.bare_stream import BareClient, bare_client, bare_server
from tests.bench.federation import bench_federation
from tests.bench.rows import ROOT, Row


def eicu_plan(convex: bool) -> str:
    """The eICU study's plan, with or without the learned convex part."""
    text = (ROOT / "lab" / "fedmap_lab" / "plans" / "eicu.toml").read_text()
    return (
        text
        if not convex
        else text.replace("convex = false", "convex = true").replace("sketch = 512", "sketch = 0")
    )


def measure(agents: int = 10, rounds: int = 5) -> Iterator[Row]:
    with bench_federation(eicu_plan(convex=False), agents, rounds + 1) as federation, ExitStack() as stack:
        federation.start()
        federation.through_preparations()
        source = federation.agents[0].prepare("parameters")
        for agent in federation.agents:
            agent.prepare("parameters")
        port = stack.enter_context(bare_server(federation.pki, source))
        clients = [stack.enter_context(bare_client(port, site.credentials)) for site in federation.sites]
        pool = stack.enter_context(ThreadPoolExecutor(agents))
        data = source.read_bytes()
        ours, bare = [], []
        tasks = list(pool.map(BareAgent.next_task, federation.agents))
        for number in range(rounds):
            began = time.perf_counter()
            tasks = list(pool.map(_take_part, federation.agents, tasks, [federation.folder] * agents))
            ours.append(time.perf_counter() - began)
            assert {task.id for task in tasks} == {f"round-{number + 2}"}
            began = time.perf_counter()
            list(pool.map(lambda client: _bare_exchange(client, data), clients))
            bare.append(time.perf_counter() - began)
    yield Row("a round of ten agents against a bare gRPC exchange", min(ours[1:]) / min(bare[1:]), 8)


def _take_part(agent: BareAgent, task: values.Task, folder: Path) -> values.Task:
    """One agent's round: fetch, send, and wait for the next task."""
    own = folder / agent.site
    own.mkdir(exist_ok=True)
    agent.connection.fetch_prior(task.study, task.prior_digest, task.prior_size, own)
    agent.answer(task)
    return agent.next_task()


def _bare_exchange(client: BareClient, data: bytes) -> None:
    client.receive()
    client.send("drop", data)
