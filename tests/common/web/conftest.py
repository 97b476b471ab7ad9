"""What the web tests share: one federation's certificates, and a log that can be read."""

from __future__ import annotations

import pytest

from tests.common.web.serving import Federation


@pytest.fixture(scope="session")
def federation() -> Federation:
    return Federation.found()
