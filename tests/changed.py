"""Names the tests of what changed, one file a line: for `make check`, which must be quick.

    python -m tests.changed [BASE]

What changed is everything since BASE (HEAD: what is not committed yet; where that is nothing, the last
commit). A changed test is run; a changed module has the tests that import it. Tests of whole processes are
left to `make test`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALWAYS = "tests/test_import_directions.py"
SLOW = (
    "tests/services",
    "tests/faults",
    "tests/containers",
    "tests/upgrade",
    "tests/integrations",
    "tests/deploy",
)
_ROOTS = ("common/", "aggregator/", "site_agent/", "lab/", "integrations/flower/")


def changed_files(base: str) -> tuple[str, ...]:
    """Paths that differ from BASE, new files too."""
    known = _git("diff", "--name-only", base)
    new = _git("ls-files", "--others", "--exclude-standard")
    return tuple(sorted({*known, *new})) or tuple(_git("diff", "--name-only", "HEAD~1"))


def covering(changed: Iterable[str], tests: Iterable[Path]) -> tuple[str, ...]:
    """The test files that are among the changed ones, or import one of them."""
    paths = [path for path in changed if path.endswith(".py")]
    modules = {module for path in paths if (module := module_of(path))}
    found = {ALWAYS}
    for test in tests:
        name = test.relative_to(ROOT).as_posix()
        if not name.startswith(SLOW) and (name in paths or modules & set(imported(test))):
            found.add(name)
    return tuple(sorted(found))


def module_of(path: str) -> str:
    """The dotted name under which a file is imported; empty for a test."""
    root = next((root for root in _ROOTS if path.startswith(root)), "")
    if not root and not path.startswith(("deploy/", "tests/")):
        return ""
    parts = Path(path.removeprefix(root)).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> Iterator[str]:
    """Every module a file names, and what it takes from one."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


if __name__ == "__main__":
    base = sys.argv[1] if len(sys.argv) > 1 else "HEAD"
    found = covering(changed_files(base), (ROOT / "tests").rglob("test_*.py"))
    sys.stdout.write("\n".join(name for name in found if (ROOT / name).exists()) + "\n")
