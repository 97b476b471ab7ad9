"""Rows that release 0.1.0 (schema 0002) wrote: a finished, released study, one under way, a failure.

Recorded once from a real run, and never made again: this is what an operator's database looks like.
"""

from __future__ import annotations

import json
from pathlib import Path

RECORDED = Path(__file__).with_name("rows-0.1.0.jsonl")
SCHEMA = "0002"
_NEW_IN = {"0002": frozenset({"bundles", "download_links"})}


def recorded_lines(revision: str = SCHEMA) -> list[bytes]:
    """The rows as a database of that revision holds them."""
    later = {table for since, tables in _NEW_IN.items() if since > revision for table in tables}
    lines = RECORDED.read_bytes().splitlines(keepends=True)
    return [line for line in lines if json.loads(line)[0] not in later]


def counts(lines: list[bytes]) -> dict[str, int]:
    names = [json.loads(line)[0] for line in lines]
    return {name: names.count(name) for name in names}
