"""What the web tests share: one federation's certificates, and a log that can be read."""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Iterator

import pytest
import structlog

from fedmap.process import log
from tests.common.web.serving import Federation


@pytest.fixture(scope="session")
def federation() -> Federation:
    return Federation.found()


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """A configured log; whatever that changes in the process is put back."""
    hooks = (sys.excepthook, threading.excepthook, sys.unraisablehook)
    handlers = list(logging.getLogger().handlers)
    text = io.StringIO()
    log.configure("debug", text)
    yield text
    sys.excepthook, threading.excepthook, sys.unraisablehook = hooks
    logging.getLogger().handlers = handlers
    logging.captureWarnings(False)
    structlog.contextvars.clear_contextvars()
    log._install(log.LEVELS["warning"], None, "")
