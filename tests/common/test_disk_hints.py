"""Hints about a large file change nothing that can be read from it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedmap.files import disk_hints
from fedmap.files.durable import DurableWriter

LARGE = 9 << 20  # more than is written back at a time


@pytest.mark.parametrize("expected", [0, 1, LARGE, 2 * LARGE])
def test_a_file_has_its_own_size_whatever_was_expected(tmp_path: Path, expected: int) -> None:
    content = os.urandom(LARGE)
    with DurableWriter(tmp_path, expected=expected) as writer:
        for start in range(0, LARGE, 1 << 20):
            writer.write(content[start : start + (1 << 20)])
        writer.commit(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == content


def test_a_peer_that_claims_a_huge_size_does_not_get_the_disk(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        disk_hints.reserve(file.fileno(), 0, 1 << 50)
        status = os.fstat(file.fileno())
    assert status.st_size == 0
    assert status.st_blocks * 512 <= disk_hints.MOST_RESERVED + (1 << 20)


def test_a_system_without_the_calls_does_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_hints, "_C", object())
    with DurableWriter(tmp_path, expected=LARGE) as writer:
        writer.write(b"x" * LARGE)
        writer.commit(tmp_path / "file")
    assert (tmp_path / "file").stat().st_size == LARGE
