"""Fixtures for tests with real processes."""

from __future__ import annotations

from tests.aggregator.conftest import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]
