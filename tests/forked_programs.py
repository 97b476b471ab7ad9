"""FedMAP's programs as processes that find what they import loaded: forked from one process that loaded it.

Loading torch, scikit-learn, SQLAlchemy and gRPC takes a core four to six seconds, and the federations of the
tests start hundreds of processes. A program that starts here is a process as any other: its own arguments,
environment, folder and files, a command line made anew, killed by the same signals. What it does not show is
that the installed commands start: tests/services/test_demo.py does.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

from tests.ran import Ran

PROGRAMS = {
    "fedmap-aggregator": "fedmap_aggregator.cli.main",
    "fedmap-site": "fedmap_site.cli.main",
    "fedmap-lab": "fedmap_lab.cli.main",
}
LOADED = (
    *(
        "fedmap_aggregator.wiring",
        "fedmap_aggregator.identity.initialise",
        "fedmap_aggregator.operator.client",
        "fedmap_aggregator.operator.status",
    ),
    *(
        "fedmap_aggregator.checkup.doctor",
        "fedmap_aggregator.upkeep.backup",
        "fedmap_aggregator.operator.message_json",
        "fedmap_aggregator.release.flower_import",
    ),
    *(
        "fedmap_site.loop.agent",
        "fedmap_site.identity.enrolment",
        "fedmap_site.link.connection",
        "fedmap_site.identity.enrolment",
    ),
    *(
        "fedmap_site.checkup.doctor",
        "fedmap_site.loop.dry_run",
        "fedmap_site.loop.drop_rounds",
        "fedmap_site.upkeep.purge",
    ),
    *("fedmap_site.bundles.download", "fedmap_site.personalise.fine_tuning", "fedmap_site.predict.table"),
    *(
        "fedmap_site.predict.server",
        "fedmap_lab.simulation.simulate",
        "fedmap_lab.simulation.results",
        "fedmap_lab.local.figures",
    ),
    *("fedmap_lab.comparison.running", "fedmap_lab.report.writing"),
    *("sksurv.metrics", "psycopg", "sqlalchemy.dialects.postgresql"),
)
"""Everything but the command lines: what those make for a terminal depends on the environment."""
# As the programs set them before they load what reads them.
_LIBRARIES = {"OMP_NUM_THREADS": "1", "GRPC_VERBOSITY": "NONE"}
_PR_SET_PDEATHSIG = 1
_CONTEXT = multiprocessing.get_context("forkserver")


class ForkedProgram:
    """A program that was started; what `subprocess.Popen` says of one, this says in the same words."""

    def __init__(
        self,
        program: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        stdout: Path,
        stderr: Path,
        folder: Path | None = None,
    ) -> None:
        """Both files are added to; they may be the same. `folder`: to run in, else the current one."""
        _CONTEXT.set_forkserver_preload(list(LOADED))
        with mock.patch.dict(os.environ, _LIBRARIES):
            forkserver.ensure_running()
        what = (program, tuple(arguments), dict(environment), folder or Path.cwd(), stdout, stderr)
        self._program = program
        self._process = _CONTEXT.Process(target=_become, args=what)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._program, timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, sig: int) -> None:
        os.kill(self.pid, sig)

    def kill(self) -> None:
        self._process.kill()


def run_forked(
    program: str, arguments: Sequence[str], environment: Mapping[str, str], folder: Path | None = None
) -> Ran:
    """A command to its end, and what it printed. Program -c is Python's: the first argument is a script."""
    with tempfile.TemporaryDirectory() as printed:
        stdout, stderr = Path(printed, "stdout"), Path(printed, "stderr")
        code = ForkedProgram(program, arguments, environment, stdout, stderr, folder).wait()
        return Ran([program, *arguments], code, stdout.read_text("utf-8"), stderr.read_text("utf-8"))


def _become(
    program: str,
    arguments: tuple[str, ...],
    environment: dict[str, str],
    folder: Path,
    stdout: Path,
    stderr: Path,
) -> None:
    """In the new process: what the system does for a program that it starts, then the program's `main`."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # never outlives whoever forked it
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for path, number in ((stdout, 1), (stderr, 2)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    if program == "-c":
        sys.argv = [program, *arguments[1:]]
        exec(arguments[0], {"__name__": "__main__"})
    else:
        sys.argv = [program, *arguments]
        import_module(PROGRAMS[program]).main()
