"""What a command left behind, and the two things to say of it: it is done, or it is refused in words."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Self

import pytest


class Ran(subprocess.CompletedProcess[str]):
    """A command that has ended."""

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)

    def done(self, *told: object) -> Self:
        """It has succeeded, and its result says all of this."""
        assert self.returncode == 0, self.stderr
        assert [one for one in told if str(one) not in self.stdout] == [], self.stdout
        return self

    def refused(self, code: int, *told: object) -> Self:
        """It ended with this code, said why, and showed no stack trace."""
        assert self.returncode == code, self.stdout + self.stderr
        assert [one for one in told if str(one) not in self.stderr] == [], self.stderr
        assert "Traceback" not in self.stderr
        return self


Command = Callable[..., Ran]


def in_this_process(
    program: str,
    main: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:
    """Runs commands as the program's entry point does."""

    def run(*arguments: object) -> Ran:
        words = [program, *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert "Traceback" not in said.out + said.err
        code = ended.value.code
        return Ran(words, code if isinstance(code, int) else 0, said.out, said.err)

    return run
