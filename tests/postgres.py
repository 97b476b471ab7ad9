"""A real PostgreSQL server for tests: made from the server's own programs, on a Unix socket, gone afterwards.

It keeps nothing (fsync is off) and listens on no port. Where the programs are missing it fails and says what
to install: a suite that is skipped in silence proves nothing.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
from psycopg import sql

_PROGRAMS = Path("/usr/lib/postgresql")
_MISSING = "PostgreSQL's server programs (initdb, postgres) are missing: apt-get install postgresql"
_READY = "ready to accept connections"
_STOP_SECONDS = 30


class PostgresServer:
    """A context manager. `database` gives the URL of an empty database of its own."""

    def __init__(self) -> None:
        self._programs = find_programs()
        # PostgreSQL refuses to run as root; the folder then belongs to the account that it runs as. It is not
        # a test's tmp_path: other accounts cannot enter that, and its name is too long for a socket.
        self._account = _account()
        self.folder = Path(tempfile.mkdtemp(prefix="fedmap-pg-", dir="/tmp"))
        self._log: deque[str] = deque(maxlen=200)
        self._server: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._count = 0

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    @contextmanager
    def database(self, tablespace: str = "pg_default") -> Iterator[str]:
        """The URL of a new, empty database, which is dropped afterwards with all its connections."""
        self._count += 1
        name = f"test_{self._count}"
        create = sql.SQL("CREATE DATABASE {} TEMPLATE template0 TABLESPACE {}")
        self.execute(create.format(sql.Identifier(name), sql.Identifier(tablespace)))
        yield self.url(name)
        self.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def url(self, database: str, user: str = "postgres", password: str = "") -> str:
        secret = f":{password}" if password else ""
        return f"postgresql://{user}{secret}@/{database}?host={self.folder}"

    def execute(self, statement: sql.SQL | sql.Composed, database: str = "postgres") -> None:
        """One statement outside any transaction."""
        with psycopg.connect(
            host=str(self.folder), user="postgres", dbname=database, autocommit=True
        ) as connection:
            connection.execute(statement)

    def own(self, folder: Path) -> None:
        """Gives a folder to the account that the server runs as."""
        if self._account is not None:
            os.chown(folder, self._account.pw_uid, self._account.pw_gid)

    def _start(self) -> None:
        self.own(self.folder)
        data = self.folder / "data"
        setup = self._as_account(
            [
                str(self._programs / "initdb"),
                *("-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8"),
                *("--locale=C", "--no-sync"),
            ]
        )
        made = subprocess.run(setup, cwd=self.folder, capture_output=True, text=True, check=False)
        if made.returncode:
            raise RuntimeError(f"initdb failed:\n{made.stdout}{made.stderr}")
        # The account "secret" has to show its password, so that a refused login can be tried.
        rules = "local all secret scram-sha-256\nlocal all all trust\n"
        (data / "pg_hba.conf").write_text(rules, encoding="utf-8")
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            "fsync": "off",
            "full_page_writes": "off",
            "shared_buffers": "16MB",
            "max_connections": "60",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = self._as_account([str(self._programs / "postgres"), "-D", str(data), *options])
        self._server = subprocess.Popen(
            command,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        ready = threading.Event()
        self._reader = threading.Thread(target=self._read_log, args=(self._server, ready), daemon=True)
        self._reader.start()
        ready.wait()
        if not any(_READY in line for line in self._log):
            raise RuntimeError("postgres did not start:\n" + "".join(self._log))

    def _read_log(self, server: subprocess.Popen[str], ready: threading.Event) -> None:
        if server.stderr is None:
            raise RuntimeError("the server's log is not connected")
        for line in server.stderr:
            self._log.append(line)
            if _READY in line:
                ready.set()
        ready.set()  # it has ended

    def _stop(self) -> None:
        if self._server is not None:
            self._server.send_signal(signal.SIGINT)  # does not wait for clients
            try:
                self._server.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()
            if self._reader is not None:
                self._reader.join()
            if self._server.stderr is not None:
                self._server.stderr.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _as_account(self, command: Sequence[str]) -> list[str]:
        """Under the right account, and ended by the kernel should the tests be killed."""
        prefix = ["setpriv", "--pdeathsig", "INT"]
        if self._account is not None:
            prefix += [f"--reuid={self._account.pw_uid}", f"--regid={self._account.pw_gid}", "--clear-groups"]
        return [*prefix, *command]


def find_programs(root: Path = _PROGRAMS) -> Path:
    """The folder of the newest server's programs."""
    found = [path.parent for path in root.glob("*/bin/initdb") if (path.parent / "postgres").exists()]
    if not found:
        on_path = shutil.which("initdb")
        if on_path is None:
            raise RuntimeError(_MISSING)
        return Path(on_path).resolve().parent
    return max(found, key=lambda folder: int(folder.parent.name.partition(".")[0]))


def _account() -> pwd.struct_passwd | None:
    """Whom to become; None where this is not root."""
    if os.getuid() != 0:
        return None
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    account = known.get("postgres") or known.get("nobody")
    if account is None:
        raise RuntimeError("as root, PostgreSQL needs the account postgres or nobody to run as")
    return account
