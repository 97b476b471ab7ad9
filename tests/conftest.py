"""Which tests stay together where several processes run them.

A fixture of a module's scope is there to be made once: the tests of that module which use it, or a fixture
that does, run in one process. A fixture that several modules share needs a mark of its own,
`pytest.mark.xdist_group`.
"""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and _shares(item) and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


def _shares(item: pytest.Function) -> bool:
    known = item._fixtureinfo.name2fixturedefs.values()
    return any(definition.scope == "module" for definitions in known for definition in definitions)
