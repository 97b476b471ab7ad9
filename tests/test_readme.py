"""The commands a newcomer copies from the README must work as written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def commands() -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    return [line.split("#")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


def test_the_lab_commands_of_the_readme_run_as_written(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "lab" / "fedmap_lab" / "plans", tmp_path / "lab" / "fedmap_lab" / "plans")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    lab = [command for command in commands() if command.startswith("fedmap-lab")]
    assert len(lab) == 2
    for command in lab:
        done = subprocess.run(
            command.split(),
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "results" / "metrics.csv").is_file()


def test_every_make_target_of_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = [command.split()[1] for command in commands() if command.startswith("make ")]
    assert targets
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in targets)


def test_ci_runs_the_readmes_own_command() -> None:
    assert "make test" in commands()
    assert "make test" in (ROOT / ".ci" / "run").read_text()
