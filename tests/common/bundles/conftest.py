"""One release key for all tests of bundles."""

from __future__ import annotations

import pytest

from fedmap.trust.signing import new_release_key


@pytest.fixture(scope="session")
def key() -> bytes:
    return new_release_key()
