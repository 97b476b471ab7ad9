"""`python -m tests.bench [NAME …]`: the ratios of docs/benchmarks.md, measured on this machine now.

Without a name all of them, each in a process of its own, so that one that fails does not stop the rest. Each
prints its table and writes it into docs/benchmarks.md. Ends with code 1 where a target was missed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

from tests.bench import (
    aggregation,
    answering,
    bundles,
    engines,
    exchange,
    idle,
    prediction,
    prior_step,
    transfer,
)
from tests.bench.rows import Row, publish

MEASUREMENTS: dict[str, Callable[[], Iterator[Row]]] = {
    "engines": engines.measure,
    "prior-step": prior_step.measure,
    "transfer": transfer.measure,
    "exchange": exchange.measure,
    "aggregation": aggregation.measure,
    "answering": answering.measure,
    "idle": idle.measure,
    "verify": bundles.measure,
    "prediction": prediction.measure,
}


def main(names: list[str]) -> int:
    if len(names) == 1:
        return publish(names[0], f"python -m tests.bench {names[0]}", MEASUREMENTS[names[0]])
    each = [[sys.executable, "-m", "tests.bench", name] for name in names or MEASUREMENTS]
    return max(subprocess.run(command, check=False).returncode for command in each)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
