"""Commands that only look or only record answer at once: nothing they use loads torch or pandas."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import importlib, sys
importlib.import_module(sys.argv[1])
sys.exit(", ".join(name for name in ("torch", "pandas", "sklearn") if name in sys.modules) or 0)
"""


@pytest.mark.parametrize(
    "module",
    [
        "fedmap_site.state.studies",  # status, studies, approve, leave
        "fedmap_site.exit.outbox",  # outbox, release, reject
        "fedmap_site.bundles.download",  # enrol, bundle fetch, and by its store the other bundle commands
    ],
)
def test_a_light_command_loads_nothing_heavy(module: str) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, module], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{module} loads {done.stderr}"
