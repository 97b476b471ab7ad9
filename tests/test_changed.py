"""`make check` runs the tests of what changed: of a test itself, and of a module whoever imports it."""

from __future__ import annotations

from tests.changed import ALWAYS, ROOT, covering, imported, module_of

TESTS = tuple((ROOT / "tests").rglob("test_*.py"))


def test_a_module_has_the_tests_that_import_it() -> None:
    found = covering(["common/fedmap/study/answers.py"], TESTS)
    assert "tests/common/test_answers.py" in found
    assert "tests/common/test_names.py" not in found


def test_a_test_that_changed_is_run_and_the_walls_always_are() -> None:
    assert covering(["tests/common/test_names.py"], TESTS) == ("tests/common/test_names.py", ALWAYS)
    assert covering(["README.md"], TESTS) == (ALWAYS,)


def test_tests_of_whole_processes_are_left_to_the_long_command() -> None:
    found = covering(["tests/services/test_federation.py", "aggregator/fedmap_aggregator/wiring.py"], TESTS)
    assert not any(name.startswith("tests/services") for name in found)


def test_files_are_known_by_the_name_that_imports_them() -> None:
    assert module_of("aggregator/fedmap_aggregator/store/__init__.py") == "fedmap_aggregator.store"
    assert module_of("integrations/flower/fedmap_flower/records.py") == "fedmap_flower.records"
    assert module_of("docs/conf.py") == ""
    assert "tests.changed.ROOT" in set(imported(ROOT / "tests" / "test_changed.py"))
