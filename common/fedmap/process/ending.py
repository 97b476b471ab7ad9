"""How a program of FedMAP ends: what it prints when something failed, and the exit code that says what kind.

One place for all programs. Numbers from 64 on are those of
<sysexits.h>, which systemd shows by name (78/CONFIG): what starts a service again can tell a fault that only
a person mends from one that may pass. docs/errors.md explains every code. Only failures that have words are
caught here; a defect ends with its stack trace.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType

from rich.console import Console

from fedmap.errors import FedmapError

FAILED = 1
UNREACHABLE, STORAGE, CONFIG = 69, 74, 78
INTERRUPTED = 130
_EXIT_CODES: Mapping[str, int] = MappingProxyType(
    {"config": CONFIG, "storage": STORAGE, "files": STORAGE, "unreachable": UNREACHABLE, "port": UNREACHABLE}
)


def exit_code_of(code: str) -> int:
    """The exit code that goes with an error's code; 1 for every kind without one of its own."""
    return _EXIT_CODES.get(code, FAILED)


def run_program(program: Callable[[], object], say: Console) -> None:
    """Run a command line to its end: a failure becomes one plain message, never a stack trace."""
    try:
        program()
    except FedmapError as error:
        _fail(say, error.code, error.message, error.hint)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read the output has gone; nothing is wrong here
        sys.exit(0)
    except OSError as error:
        _fail(
            say,
            "files",
            ": ".join(str(part) for part in (error.strerror or error, error.filename) if part),
            "Check that the path exists, is yours to write, and that the disk is not full.",
        )
    except KeyboardInterrupt:
        say.print("interrupted")
        sys.exit(INTERRUPTED)


def _fail(say: Console, code: str, message: str, hint: str) -> None:
    if "--json" in sys.argv:
        text = json.dumps({"error": code, "message": message, "hint": hint}, ensure_ascii=False)
        sys.stderr.write(f"{text}\n")
    else:
        say.print(f"[bold red]error[/bold red] ({code}): ", end="")
        say.print(f"{message}\n  hint: {hint}", markup=False, highlight=False, soft_wrap=True)
    sys.exit(exit_code_of(code))
