"""200 connected agents with nothing to do: the aggregator's CPU, and how soon a new task reaches them all."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fedmap.contract.v1 import values
from tests.bench.bare_agent import BareAgent
from tests.bench.federation import bench_federation
from tests.bench.rows import Row
from tests.bench.transfer import plan

HEARTBEAT_SECONDS = 15.0  # the agent's default
POLL_SECONDS = 25  # the agent's default
TASK_SECONDS = 2.0


def measure(agents: int = 200, idle_seconds: float = 30.0) -> Iterator[Row]:
    with bench_federation(plan(width=8), agents, 1) as federation:
        process = federation.processes.process("aggregator").pid
        stop = threading.Event()
        with ThreadPoolExecutor(agents) as pool:
            polls = [pool.submit(_poll_until_asked, agent, stop) for agent in federation.agents]
            beating = threading.Thread(target=_beat, args=(federation.agents, stop))
            beating.start()
            try:
                stop.wait(idle_seconds / 6)  # let the connections settle
                before, began = _cpu_seconds(process), time.perf_counter()
                stop.wait(idle_seconds)
                share = (_cpu_seconds(process) - before) / (time.perf_counter() - began)
                began = time.perf_counter()
                federation.start()
                last = max(poll.result(timeout=60) for poll in polls) - began
            finally:
                stop.set()
                beating.join()
    yield Row("CPU with 200 idle agents, of one core", 100 * share, 5, unit="%")
    within = 100 * last / TASK_SECONDS
    yield Row("a new task at the last of 200 agents, of the 2 s it may take", within, 100, unit="%")


def _poll_until_asked(agent: BareAgent, stop: threading.Event) -> float:
    """Long polls, one after another; when the task came."""
    while not stop.is_set():
        if agent.connection.next_task(agent.instance, (), POLL_SECONDS) is not None:
            return time.perf_counter()
    return float("inf")


def _beat(agents: tuple[BareAgent, ...], stop: threading.Event) -> None:
    """Every agent's sign of life, spread over the interval."""
    while True:
        for agent in agents:
            if stop.wait(HEARTBEAT_SECONDS / len(agents)):
                return
            agent.connection.heartbeat(values.HeartbeatRequest(instance=agent.instance, stage="idle"))


def _cpu_seconds(process: int) -> float:
    """User and system time of a process, its ended children included."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(int(value) for value in fields[11:15]) / os.sysconf("SC_CLK_TCK")
