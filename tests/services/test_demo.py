"""What a newcomer sees first: the demo, whole, and interrupted half-way."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from pathlib import Path

import pytest

from fedmap_lab.local.federation import command_path


def demo(out: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(command_path("fedmap-lab")), "demo", "--out", str(out), *options],
        env={**os.environ, "COLUMNS": "160"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def processes_of(folder: Path) -> list[str]:
    """Running processes that were told of a configuration below `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in environment and entry.name != str(os.getpid()):
            found.append(entry.name)
    return found


def wait_until_gone(folder: Path) -> None:
    """Processes that were told to end may take a moment; none may stay."""
    for number in processes_of(folder):
        try:
            handle = os.pidfd_open(int(number))
        except ProcessLookupError:
            continue
        try:
            ended, _, _ = select.select([handle], [], [], 20)
        finally:
            os.close(handle)
        assert ended, f"process {number} is still there"
    assert processes_of(folder) == []


def test_the_demo_ends_with_a_table_a_picture_and_no_process(tmp_path: Path) -> None:
    process = demo(tmp_path / "demo", "--rounds", "2")
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    for site in ("older_donors", "younger_donors", "non_european_ancestry", "new_donors", "small_centre"):
        assert site in output
    for tier in ("T1 trained", "T2 fine-tuned", "T3 predicted"):
        assert tier in output
    report = (tmp_path / "demo" / "personal" / "new_donors" / "report.html").read_text()
    assert "<svg" in report
    assert (tmp_path / "demo" / "predictions" / "small_centre.csv").is_file()
    assert (tmp_path / "demo" / "federation.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "demo" / "results" / "metrics.csv").is_file()
    assert not (tmp_path / "demo" / "federation").exists()
    assert processes_of(tmp_path / "demo") == []


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(signal.SIGINT, id="ctrl-c"),
        pytest.param(signal.SIGTERM, id="terminated", marks=pytest.mark.long),
    ],
)
def test_an_interrupted_demo_leaves_nothing_running(tmp_path: Path, how: signal.Signals) -> None:
    process = demo(tmp_path / "demo")
    assert process.stderr is not None
    for line in process.stderr:  # wait until a site agent is about to run
        if "approves" in line:
            break
    os.killpg(process.pid, how)
    process.communicate()
    assert process.returncode != 0
    wait_until_gone(tmp_path / "demo")
