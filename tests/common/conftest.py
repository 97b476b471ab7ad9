"""How the tests of the library run, and a log that can be read."""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Iterator

import pytest
import structlog
import torch
from hypothesis import settings

from fedmap.process import log

# A busy machine is not a failure: no time limit per example.
settings.register_profile("unhurried", settings.default, deadline=None)
settings.load_profile("unhurried")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tensors this small only lose by threads, and the order of sums stays the same everywhere."""
    torch.set_num_threads(1)


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """A configured log; whatever that changes in the process is put back."""
    hooks = (sys.excepthook, threading.excepthook, sys.unraisablehook)
    handlers = list(logging.getLogger().handlers)
    text = io.StringIO()
    log.configure("debug", text, service="site")
    yield text
    sys.excepthook, threading.excepthook, sys.unraisablehook = hooks
    logging.getLogger().handlers = handlers
    logging.captureWarnings(False)
    structlog.contextvars.clear_contextvars()
    log._install(log.LEVELS["warning"], None, "")
