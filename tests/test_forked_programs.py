"""What is forked in place of a command is what that command starts, and ends as it would."""

from __future__ import annotations

import os
import signal
import subprocess
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.forked_programs import LOADED, PROGRAMS, ForkedProgram, run_forked

WAITS = "import signal, sys; print('here', flush=True); signal.pause()"


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_is_the_installed_one(program: str) -> None:
    (installed,) = entry_points(group="console_scripts", name=program)
    assert installed.value == f"{PROGRAMS[program]}:main"


def test_arguments_environment_folder_output_and_exit_code_are_the_programs_own(tmp_path: Path) -> None:
    script = "import os, sys; print(sys.argv, dict(os.environ), os.getcwd()); sys.exit('no')"
    done = run_forked("-c", [script, "one"], {"NAME": "value"}, tmp_path)
    assert done.stdout == f"['-c', 'one'] {{'NAME': 'value'}} {tmp_path}\n"
    assert (done.stderr, done.returncode) == ("no\n", 1)


def test_what_is_to_be_loaded_is_loaded_and_no_command_line_is() -> None:
    done = run_forked("-c", ["import sys; print(*sys.modules)"], os.environ)
    loaded = done.stdout.split()
    assert set(LOADED) <= set(loaded)
    assert not set(PROGRAMS.values()) & set(loaded)


def test_a_running_program_is_waited_for_and_killed(tmp_path: Path) -> None:
    process = ForkedProgram("-c", [WAITS], os.environ, tmp_path / "out", tmp_path / "out")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.05)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait() == process.poll() == -signal.SIGTERM
