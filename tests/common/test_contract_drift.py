"""The committed protobuf code is what `make proto` gives for the contract in proto/, byte for byte."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROTO = ROOT / "proto" / "fedmap" / "v1"
SOURCE_ROOT = ROOT / "common"
PACKAGE = Path("fedmap") / "contract" / "v1"


def test_the_committed_code_is_what_the_contract_generates(tmp_path: Path) -> None:
    sources = sorted(path.name for path in PROTO.glob("*.proto"))
    assert sources
    # The plugin for mypy stands beside the interpreter of the virtual environment.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PACKAGE}={PROTO}"]
    command += [f"--python_out={tmp_path}", f"--mypy_out=quiet:{tmp_path}"]
    command += [str(PACKAGE / name) for name in sources]
    made = subprocess.run(
        command, env={**os.environ, "PATH": path}, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    fresh = {file.name: file.read_bytes() for file in (tmp_path / PACKAGE).iterdir()}
    committed = {
        file.name: file.read_bytes() for file in (SOURCE_ROOT / PACKAGE).glob("*_pb2*.py*") if file.is_file()
    }
    assert fresh.keys() == committed.keys(), "run `make proto`: files were added or removed"
    changed = sorted(name for name in fresh if fresh[name] != committed[name])
    assert not changed, f"run `make proto`: {', '.join(changed)} differ from the contract"


def test_every_call_of_the_contract_says_who_makes_it() -> None:
    """In the comment above the call, or once for the service."""
    for source in PROTO.glob("*.proto"):
        text = source.read_text(encoding="utf-8")
        comment: list[str] = []
        for line in text.splitlines():
            stripped = line.strip()
            if stripped.startswith("//"):
                comment.append(stripped)
            elif stripped.startswith("rpc "):
                said = " ".join(comment)
                everywhere = "Caller of every call" in text
                assert everywhere or "Caller:" in said, f"{source.name}: {stripped}"
                assert said, f"{source.name}: {stripped}"
                comment = []
            else:
                comment = []


def test_the_committed_values_are_what_the_contract_generates() -> None:
    command = [sys.executable, str(ROOT / "proto" / "generate_values.py"), "--print"]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    committed = (SOURCE_ROOT / PACKAGE / "values.py").read_text(encoding="utf-8")
    assert made.stdout == committed, "run `make proto`"
