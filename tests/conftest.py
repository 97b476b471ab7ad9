"""Which tests stay together where several processes run them, and which go first.

A fixture of a module's scope is there to be made once: the tests of that module which use it, or a fixture
that does, run in one process. A fixture that several modules share needs a mark of its own,
`pytest.mark.xdist_group`.

Tests that start whole federations take longest and go first: at the end one long test would keep one process
busy while the others have nothing left to do.
"""

from __future__ import annotations

import signal

import pytest

# A run in the background ignores Ctrl-C, and so would the programs that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

LONGEST = ("tests/faults/", "tests/services/", "tests/lab/comparison/", "tests/lab/test_leave_one_out.py")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
    for item in items:
        if isinstance(item, pytest.Function) and _shares(item) and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


def _shares(item: pytest.Function) -> bool:
    known = item._fixtureinfo.name2fixturedefs.values()
    return any(definition.scope == "module" for definitions in known for definition in definitions)
