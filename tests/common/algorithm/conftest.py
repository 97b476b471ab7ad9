"""How the tests of the algorithm run."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

# A busy machine is not a failure: no time limit per example.
settings.register_profile("unhurried", settings.default, deadline=None)
settings.load_profile("unhurried")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tensors this small only lose by threads, and the order of sums stays the same everywhere."""
    torch.set_num_threads(1)
