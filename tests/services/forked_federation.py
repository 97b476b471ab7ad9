"""A federation as `fedmap_lab.local.federation` has it, whose processes find their libraries loaded."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedmap_lab.local.federation import LocalFederation
from tests.forked_programs import ForkedProgram, run_forked


@dataclass
class ForkedFederation(LocalFederation):
    """For tests of what a federation does; that the installed commands start, test_demo shows."""

    def _begun(
        self, program: Path, arguments: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> ForkedProgram:
        return ForkedProgram(program.name, arguments, environment, log, log)

    def _ended(
        self, program: Path, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        return run_forked(program.name, arguments, environment)
