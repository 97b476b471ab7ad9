from __future__ import annotations

import pytest

from tests.containers.engine import IMAGES, ROOT, Engine, find_engine


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The engine, with the images that `make images` builds."""
    found = find_engine()
    missing = [name for name in IMAGES.values() if found.try_run("image", "inspect", name).returncode != 0]
    if missing:
        pytest.fail(f"{', '.join(missing)}: not built; run `make images` or `make compose-test`")
    return found


@pytest.fixture(scope="session")
def tools(engine: Engine) -> str:
    """The image of tests/containers/tools: programs of others that tests put beside ours."""
    return engine.build(ROOT / "tests" / "containers" / "tools", "fedmap-test-tools:latest")
