"""The site's audit log: durable, chained, mended after a power cut, and tampering is found."""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path

import pytest

from fedmap.errors import IntegrityError, StorageError
from fedmap.trust.audit import START
from fedmap_site.state.audit_log import AuditLog


def log(folder: Path) -> AuditLog:
    ticks = count(1000)
    return AuditLog(folder / "audit.jsonl", lambda: next(ticks))


def test_entries_follow_each_other_and_verify(tmp_path: Path) -> None:
    audit = log(tmp_path)
    assert audit.verify().head == START
    first = audit.append("study.approved", "toy", {"terms": "ab"}, actor="Dr Grey")
    second = audit.append("outbox.sent", "toy.round-1.1")
    assert second.previous == first.hash
    verified = audit.verify()
    assert (verified.entries, verified.head, verified.torn_bytes) == (2, second.hash, 0)
    assert [entry.actor for entry in audit.entries()] == ["Dr Grey", "agent"]


def test_a_long_log_is_continued_from_its_last_line(tmp_path: Path) -> None:
    audit = log(tmp_path)
    for number in range(300):
        audit.append("x", "y" * 400, {"n": str(number)})
    again = log(tmp_path)
    assert again.append("x", "last").seq == 301
    assert again.verify().entries == 301


@pytest.mark.parametrize("kept", [1, 20, -2, -1])
def test_a_line_torn_by_a_power_cut_is_moved_aside_and_recorded(tmp_path: Path, kept: int) -> None:
    audit = log(tmp_path)
    audit.append("first", "a")
    path = tmp_path / "audit.jsonl"
    whole = path.read_bytes()
    audit.append("second", "b")
    torn = path.read_bytes()[len(whole) :][:kept]
    path.write_bytes(whole + torn)
    assert log(tmp_path).verify().torn_bytes == len(torn)
    log(tmp_path).append("third", "c")
    entries = list(audit.entries())
    assert [entry.action for entry in entries] == ["first", "audit.repaired", "third"]
    assert entries[1].detail["bytes"] == str(len(torn))
    (aside,) = tmp_path.glob("audit.jsonl.torn-*")
    assert aside.read_bytes() == torn
    assert audit.verify().entries == 3


def test_a_log_that_is_only_a_torn_line_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").write_bytes(b'{"seq":1,"act')
    log(tmp_path).append("first", "a")
    assert [entry.action for entry in log(tmp_path).entries()] == ["audit.repaired", "first"]
    log(tmp_path).verify()


@pytest.mark.parametrize("subject", ["z", None], ids=["changed", "removed"])
def test_an_entry_that_was_changed_or_removed_is_found_and_named(tmp_path: Path, subject: str | None) -> None:
    audit = log(tmp_path)
    for name in ("a", "b", "c"):
        audit.append("x", name)
    path = tmp_path / "audit.jsonl"
    first, second, third = path.read_text().splitlines(keepends=True)
    second = second.replace('"subject":"b"', f'"subject":"{subject}"') if subject else ""
    path.write_text(first + second + third)
    with pytest.raises(IntegrityError, match="entry 2"):
        audit.verify()


def test_nothing_is_appended_to_a_changed_last_entry(tmp_path: Path) -> None:
    audit = log(tmp_path)
    audit.append("x", "a")
    path = tmp_path / "audit.jsonl"
    path.write_text(path.read_text().replace('"subject":"a"', '"subject":"z"'))
    with pytest.raises(IntegrityError):
        audit.append("x", "b")


@pytest.mark.parametrize("line", [b"\xff\xfe\n", b"{}\n", b"nonsense\n"])
def test_a_line_that_is_no_entry_is_found(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "audit.jsonl").write_bytes(line)
    with pytest.raises(IntegrityError):
        log(tmp_path).verify()
    with pytest.raises(IntegrityError):
        log(tmp_path).append("x", "y")


def test_two_writers_at_once_make_one_chain(tmp_path: Path) -> None:
    def write() -> None:
        audit = AuditLog(tmp_path / "audit.jsonl", lambda: 1)
        for _ in range(30):
            audit.append("x", "y")

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log(tmp_path).verify().entries == 90


def test_a_folder_that_is_gone_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        log(tmp_path / "gone").append("x", "y")
