"""Two gauges that are read at the moment of a scrape: a table replaced as a whole, and the space of a disk.

A plain gauge keeps every label that it was ever given. A table's rows come and go together, so that a site or
an outbox state that is gone is gone from the next scrape too, and no scrape sees half of a change.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector


class GaugeTable(Collector):
    """One gauge whose rows are replaced together. Empty until then. Safe to call from any thread."""

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._rows: Mapping[tuple[str, ...], float] = {}

    def replace(self, rows: Mapping[tuple[str, ...], float]) -> None:
        """The labels of each row with its value."""
        self._rows = dict(rows)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily(self._name, self._text, labels=self._labels)
        for labels, value in self._rows.items():
            family.add_metric(labels, value)
        yield family


class DiskSpace(Collector):
    """Free and whole bytes of the disk that holds a folder, as `PREFIX_state_…_bytes`."""

    def __init__(self, prefix: str, folder: Path) -> None:
        self._prefix = prefix
        self._folder = folder

    def collect(self) -> Iterable[GaugeMetricFamily]:
        try:
            found = shutil.disk_usage(self._folder)
            free, total = found.free, found.total
        except OSError:  # a disk that is gone has no room: that is what an alert has to see
            free, total = 0, 0
        yield GaugeMetricFamily(
            f"{self._prefix}_state_free_bytes", "Free on the disk of the state folder; 0: it is gone", free
        )
        yield GaugeMetricFamily(
            f"{self._prefix}_state_size_bytes", "Size of the disk of the state folder", total
        )
