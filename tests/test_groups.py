"""Tests that share a costly fixture run in one process. Where pytest and pytest-xdist do not fit together the
mark is ignored without a word, and every federation is started once for each process.
"""

from __future__ import annotations

import os

import pytest


@pytest.mark.xdist_group("kept-together")
@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="one process runs all tests")
def test_tests_of_a_group_are_kept_in_one_process(request: pytest.FixtureRequest) -> None:
    assert request.node.nodeid.endswith("@kept-together")
