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


@pytest.fixture(scope="module")
def costly() -> object:
    return object()


@pytest.fixture
def made_of_it(costly: object) -> object:
    return costly


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="one process runs all tests")
def test_tests_that_share_a_fixture_of_their_module_are_a_group(
    request: pytest.FixtureRequest, made_of_it: object
) -> None:
    assert made_of_it is not None
    assert request.node.nodeid.endswith("@tests/test_groups.py")
