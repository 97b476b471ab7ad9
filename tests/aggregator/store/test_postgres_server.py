"""The test server itself: where it cannot run, it says what to install, and nothing is skipped in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.postgres import find_programs


def test_missing_server_programs_name_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="apt-get install postgresql"):
        find_programs(tmp_path)


def test_the_newest_server_is_taken(tmp_path: Path) -> None:
    for version in ("9.6", "15", "17"):
        programs = tmp_path / version / "bin"
        programs.mkdir(parents=True)
        (programs / "initdb").touch()
        (programs / "postgres").touch()
    assert find_programs(tmp_path) == tmp_path / "17" / "bin"
