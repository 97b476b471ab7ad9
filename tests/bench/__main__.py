"""`python -m tests.bench [NAME …]`: the services' ratios of docs/benchmarks.md, measured on this machine now.

Names: aggregation, transfer, exchange, answering, idle, verify, prediction; all of them without a name. Ends
with code 1 where a target was missed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from tests.bench import aggregation, bundles, exchange, idle, prediction, transfer


@dataclass(frozen=True)
class Row:
    what: str
    measured: float
    target: float | None = None  # None: for information
    at_least: bool = False
    unit: str = "×"

    @property
    def met(self) -> bool:
        if self.target is None:
            return True
        return self.measured >= self.target if self.at_least else self.measured <= self.target


def transfer_rows() -> Iterator[Row]:
    seen = transfer.measure()
    # ADR 0030 says why the streams that also prove their bytes are the ones to be held against.
    yield Row(
        "upload against a bare stream with SHA-256 and synced file",
        seen.upload_proven / seen.upload,
        0.7,
        True,
    )
    yield Row("upload against a bare stream into a synced file", seen.upload_kept / seen.upload)
    yield Row("upload against a bare stream that forgets its bytes", seen.upload_dropped / seen.upload)
    yield Row(
        "download against a bare stream with SHA-256 and file",
        seen.download_proven / seen.download,
        0.7,
        True,
    )
    yield Row("download against a bare stream into a file", seen.download_kept / seen.download)
    yield Row("download against a bare stream that forgets its bytes", seen.download_dropped / seen.download)
    yield Row("bytes in messages against tensor bytes", seen.wire, 1.02)


def aggregation_rows() -> Iterator[Row]:
    seen = aggregation.measure()
    yield Row("1,000 updates against reading and summing in float64", seen.ratio_float64, 3)
    yield Row("1,000 updates against reading and summing in float32", seen.ratio_float32)
    yield Row("peak memory above idle", seen.peak_mib, 500, unit="MiB")


def exchange_rows() -> Iterator[Row]:
    seen = exchange.measure_exchange()
    yield Row("a round of ten agents against a bare exchange", seen.round / seen.bare, 8)


def answering_rows() -> Iterator[Row]:
    seen = exchange.measure_answering()
    yield Row("longest answer while estimating", seen.longest_milliseconds, 100, unit="ms")


def idle_rows() -> Iterator[Row]:
    seen = idle.measure()
    yield Row("CPU with 200 idle agents, of one core", 100 * seen.cpu_share, 5, unit="%")
    yield Row("a new task at the last of 200 agents", seen.last_task_seconds, 2, unit="s")


def verify_rows() -> Iterator[Row]:
    yield Row("verifying a bundle of 200 MB against hashing it", bundles.measure().ratio, 2)


def prediction_rows() -> Iterator[Row]:
    seen = prediction.measure()
    yield Row("rows predicted against the bare forward pass", seen.ratio, 0.8, True)
    yield Row("the same with the rows read from CSV and checked", seen.bare / (seen.csv + seen.core))
    yield Row("the same with the rows read from Parquet and checked", seen.bare / (seen.parquet + seen.core))


MEASUREMENTS: dict[str, Callable[[], Iterator[Row]]] = {
    "aggregation": aggregation_rows,
    "transfer": transfer_rows,
    "exchange": exchange_rows,
    "answering": answering_rows,
    "idle": idle_rows,
    "verify": verify_rows,
    "prediction": prediction_rows,
}


def main(names: list[str]) -> int:
    console = Console()
    table = Table(title="FedMAP services: measured within this run", title_justify="left")
    for column in ("what", "measured", "target", ""):
        table.add_column(column)
    missed = 0
    for name in names or list(MEASUREMENTS):
        console.print(f"{name} …")
        for row in MEASUREMENTS[name]():
            sign = "≥" if row.at_least else "≤"
            target = "" if row.target is None else f"{sign} {row.target:g} {row.unit}"
            verdict = "" if row.target is None else "met" if row.met else "[bold red]missed[/bold red]"
            table.add_row(row.what, f"{row.measured:.3g} {row.unit}", target, verdict)
            missed += not row.met
    console.print(table)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
