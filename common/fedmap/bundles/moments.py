"""Moments as people read them."""

from __future__ import annotations

import datetime


def day(unix_ms: int) -> str:
    """The day in UTC, such as 2026-03-31."""
    return datetime.datetime.fromtimestamp(unix_ms / 1000, datetime.UTC).date().isoformat()
