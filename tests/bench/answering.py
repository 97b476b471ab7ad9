"""How soon the aggregator answers a short call while it estimates a prior of 28.6 million numbers in ψ."""

from __future__ import annotations

import time
from collections.abc import Iterator

from tests.bench.exchange import eicu_plan
from tests.bench.federation import bench_federation
from tests.bench.rows import Row

LIMIT_SECONDS = 0.1


def measure(agents: int = 4, convex: bool = True) -> Iterator[Row]:
    with bench_federation(eicu_plan(convex), agents, 1) as federation:
        federation.start()
        federation.through_preparations()
        connection = federation.agents[0].connection

        def answered() -> float:
            start = time.perf_counter()
            connection.hello("bench")
            return time.perf_counter() - start

        at_rest = max(answered() for _ in range(100))
        for agent in federation.agents:
            agent.answer(agent.next_task())
        while_estimating = [answered()]
        while federation.operator.status(federation.terms.study).studies[0].task_id in ("", "round-1"):
            while_estimating.append(answered())
    longest = max(while_estimating)
    within = 100 * longest / LIMIT_SECONDS
    yield Row("longest answer while estimating, of the 0.1 s it may take", within, 100, unit="%")
    yield Row("the same against the longest of 100 answers at rest", longest / at_rest)
