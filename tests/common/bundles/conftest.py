"""One release key for all tests of bundles, and a sound bundle under it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmap.trust.signing import new_release_key
from tests.common.bundles.examples import write_example


@pytest.fixture(scope="session")
def key() -> bytes:
    return new_release_key()


@pytest.fixture
def path(tmp_path: Path, key: bytes) -> Path:
    return write_example(tmp_path / "x.fedmap", key).path
