"""CONTRIBUTING's walk of one round is true and short: its files exist, are joined, and are counted."""

from __future__ import annotations

import re

from tests.changed import ROOT, imported, module_of

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
WALK = re.findall(r"^\| (\d+) \| `([^`]+)` \| ?(.*)\|$", TEXT, re.MULTILINE)
MOST_MODULES, MOST_SHAPES = 25, 6
# Where the update is handed on without an import: to another program, a thread, or the interface above.
HANDED_OVER = ("courier", "services", "intake", "queue", "process", "centre_step", "federation", "service")


def test_one_update_passes_few_modules_in_few_shapes() -> None:
    assert [int(number) for number, _, _ in WALK] == list(range(1, len(WALK) + 1))
    assert len(WALK) <= MOST_MODULES
    shapes = [said for _, _, said in WALK if re.match(r"`[A-Z]\w+`", said)]
    assert 1 < len(shapes) <= MOST_SHAPES


def test_each_module_of_the_walk_is_imported_by_one_before_it() -> None:
    seen: set[str] = set()
    for _, path, _ in WALK:
        module = module_of(path)
        joined = not seen or any(name == module or name.startswith(f"{module}.") for name in seen)
        assert joined or module.rpartition(".")[2] in HANDED_OVER, f"nothing before it names {module}"
        seen |= set(imported(ROOT / path))


def test_every_file_that_is_named_is_there() -> None:
    named = re.findall(r"`((?:common|aggregator|site_agent|lab|integrations|tests|docs)/[\w./-]+)`", TEXT)
    assert named
    missing = sorted({path for path in named if not (ROOT / path).exists()})
    assert not missing, missing
