"""The words for faults of a machine: who may not, what is missing, which port is taken; how programs end."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest
from rich.console import Console

from fedmap.errors import ConfigError, FedmapError, PortError, StorageError, UnreachableError
from fedmap.files.access import missing_mount
from fedmap.files.durable import storage_error
from fedmap.process.addresses import bind_fault, port_error
from fedmap.process.ending import exit_code_of, run_program


def test_a_missing_folder_is_told_apart_from_an_empty_one(tmp_path: Path) -> None:
    assert f"{tmp_path} is empty. Is the disk or volume mounted?" in missing_mount(tmp_path / "patients.csv")
    assert f"{tmp_path} has no such folder" in missing_mount(tmp_path / "mount" / "patients.csv")
    (tmp_path / "other").touch()
    assert "holds other things" in missing_mount(tmp_path / "patients.csv")


def test_a_refusal_names_the_account_and_the_owner(tmp_path: Path) -> None:
    told = storage_error(PermissionError(errno.EACCES, "no"), tmp_path)
    owner = f"{tmp_path} belongs to user {tmp_path.stat().st_uid} with mode"
    assert f"this program runs as user {os.geteuid()}, and {owner}" in told.message
    assert told.hint


def test_a_port_in_use_and_an_address_of_another_machine_are_told_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        taken = bind_fault("127.0.0.1", held.getsockname()[1], "metrics.listen")
    assert taken is not None
    assert "another program uses this port" in taken.message
    foreign = bind_fault("192.0.2.1", 8443, "metrics.listen")
    assert foreign is not None
    assert "not an address of this machine" in foreign.message
    assert bind_fault("127.0.0.1", 0, "metrics.listen") is None


def test_a_low_port_is_told_with_the_user() -> None:
    told = port_error("0.0.0.0:443", "server.listen", PermissionError(errno.EACCES, "no"))
    assert f"user {os.geteuid()} may not use ports below 1024" in told.message
    assert "server.listen" in told.hint


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("file", ("wrong",), hint="h"), 78),
        (StorageError("full", hint="h"), 74),
        (FileNotFoundError(errno.ENOENT, "gone", "file"), 74),
        (PortError("taken", hint="h"), 69),
        (UnreachableError("away", hint="h"), 69),
        (FedmapError("other", hint="h"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_the_exit_code_says_what_kind_of_failure_it_was(error: BaseException, code: int) -> None:
    def program() -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        run_program(program, Console(quiet=True))
    assert ended.value.code == code


def test_every_exit_code_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
    for code in ("config", "storage", "files", "unreachable", "port"):
        (row,) = [line for line in page.splitlines() if line.startswith(f"| {exit_code_of(code)} |")]
        assert f"`{code}`" in row
