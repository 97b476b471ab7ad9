"""200 connected agents with nothing to do: the aggregator's CPU, and how soon a new task reaches them all."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fedmap.contract.v1 import federation_pb2 as pb
from tests.bench.bare_agent import BareAgent
from tests.bench.federation import bench_federation
from tests.bench.transfer import PLAN

AGENTS = 200
IDLE_SECONDS = 30.0
HEARTBEAT_SECONDS = 15.0  # the agent's default
POLL_SECONDS = 25  # the agent's default


@dataclass(frozen=True)
class Idle:
    cpu_share: float  # of one core, while nothing happens
    last_task_seconds: float  # from the start of a study until the last agent has its task


def measure() -> Idle:
    plan = PLAN.replace("hidden = [5000, 5000]", "hidden = [8]")
    with bench_federation(plan, AGENTS, 1) as federation:
        process = federation.processes.process("aggregator").pid
        stop = threading.Event()
        with ThreadPoolExecutor(AGENTS) as pool:
            polls = [pool.submit(_poll_until_asked, agent, stop) for agent in federation.agents]
            beating = threading.Thread(target=_beat, args=(federation.agents, stop))
            beating.start()
            try:
                stop.wait(5.0)  # let the connections settle
                before, began = _cpu_seconds(process), time.perf_counter()
                stop.wait(IDLE_SECONDS)
                share = (_cpu_seconds(process) - before) / (time.perf_counter() - began)
                began = time.perf_counter()
                federation.start()
                last = max(poll.result(timeout=60) for poll in polls) - began
            finally:
                stop.set()
                beating.join()
        return Idle(share, last)


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
            agent.connection.heartbeat(pb.HeartbeatRequest(instance=agent.instance, stage="idle"))


def _cpu_seconds(process: int) -> float:
    """User and system time of a process, its ended children included."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(int(value) for value in fields[11:15]) / os.sysconf("SC_CLK_TCK")
