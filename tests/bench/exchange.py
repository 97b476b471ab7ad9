"""A whole round without training, everything durable, against a bare exchange of the same bytes.

Ten agents fetch the prior and send 223,002 parameters each (the eICU network), side by side. Also: how long
the aggregator takes to answer while it estimates a large prior.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from fedmap.contract.v1 import federation_pb2 as pb
from tests.bench.bare_agent import BareAgent
from tests.bench.bare_stream import BareClient, bare_client, bare_server
from tests.bench.federation import ROOT, BenchFederation, bench_federation

AGENTS, ROUNDS = 10, 5


@dataclass(frozen=True)
class Exchange:
    """Best seconds of a round and of a bare exchange, in turns in one run."""

    round: float
    bare: float


@dataclass(frozen=True)
class Answering:
    """How the aggregator answers while the worker estimates a prior of 28.6 million numbers in ψ."""

    longest_milliseconds: float
    calls: int
    estimating_seconds: float


def eicu_plan(convex: bool) -> str:
    """The eICU study's plan, with or without the learned convex part."""
    text = (ROOT / "lab" / "fedmap_lab" / "plans" / "eicu.toml").read_text()
    return (
        text
        if not convex
        else text.replace("convex = false", "convex = true").replace("sketch = 512", "sketch = 0")
    )


def measure_exchange() -> Exchange:
    with bench_federation(eicu_plan(convex=False), AGENTS, ROUNDS + 1) as federation, ExitStack() as stack:
        federation.start()
        federation.through_preparations()
        source = federation.agents[0].prepare("parameters")
        for agent in federation.agents:
            agent.prepare("parameters")
        port = stack.enter_context(bare_server(federation.pki, source))
        clients = [stack.enter_context(bare_client(port, site.credentials)) for site in federation.sites]
        pool = stack.enter_context(ThreadPoolExecutor(AGENTS))
        data = source.read_bytes()
        rounds, bare = [], []
        tasks = list(pool.map(BareAgent.next_task, federation.agents))
        for number in range(ROUNDS):
            began = time.perf_counter()
            tasks = list(pool.map(_take_part, federation.agents, tasks, [federation.folder] * AGENTS))
            rounds.append(time.perf_counter() - began)
            assert {task.id for task in tasks} == {f"round-{number + 2}"}
            began = time.perf_counter()
            list(pool.map(lambda client: _bare_exchange(client, data), clients))
            bare.append(time.perf_counter() - began)
        return Exchange(min(rounds[1:]), min(bare[1:]))


def _take_part(agent: BareAgent, task: pb.Task, folder: Path) -> pb.Task:
    """One agent's round: fetch, send, and wait for the next task."""
    own = folder / agent.site
    own.mkdir(exist_ok=True)
    agent.connection.fetch_prior(task.study, task.prior_digest, task.prior_size, own)
    agent.answer(task)
    return agent.next_task()


def _bare_exchange(client: BareClient, data: bytes) -> None:
    client.receive()
    client.send("drop", data)


def measure_answering() -> Answering:
    with bench_federation(eicu_plan(convex=True), 4, 1) as federation:
        federation.start()
        federation.through_preparations()
        tasks = [agent.next_task() for agent in federation.agents]
        for agent, task in zip(federation.agents, tasks, strict=True):
            agent.answer(task)
        return _ping(federation)


def _ping(federation: BenchFederation) -> Answering:
    """Short calls one after another until the next task is there."""
    waiting, began = [], time.perf_counter()
    connection = federation.agents[0].connection
    while True:
        (status,) = federation.operator.status(federation.terms.study).studies
        if status.task_id not in ("", "round-1"):
            break
        start = time.perf_counter()
        connection.hello("bench")
        waiting.append(time.perf_counter() - start)
    return Answering(1000 * max(waiting), len(waiting), time.perf_counter() - began)
