"""What `doctor` finds out about the machine: state folder, disk, clock, database, ports.

The port is judged by a real mutual-TLS health call: a free port, this aggregator and a stranger on the port
are three different findings. Certificates on disk are `identity`.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from fedmap.errors import FedmapError, StateError, StorageError
from fedmap.files.durable import try_writing
from fedmap.process.addresses import bind_fault, host_of, port_of
from fedmap.process.findings import Finding, failed, failed_by, passed, warned
from fedmap.process.telemetry import is_telemetry
from fedmap_aggregator.config import NOT_THERE, AggregatorConfig
from fedmap_aggregator.identity.profile import OperatorProfile

_MIB = 1 << 20
_LEAST_MIB = 256
_SKEW = datetime.timedelta(minutes=5)
_SECONDS = 5.0
_ANY = {"0.0.0.0", "::", ""}


def state_folder(state: Path) -> Iterator[Finding]:
    """Is it there and this account's to write, and can others look into it?"""
    if not state.is_dir():
        yield failed("state folder", f"{state} is missing", NOT_THERE)
        return
    try:
        try_writing(state)
    except StorageError as error:
        yield failed("state folder", f"it cannot be written: {error.message}", error.hint)
        return
    open_to = stat.S_IMODE(state.stat().st_mode) & 0o077
    if open_to:
        yield Finding(
            "state folder",
            "fail" if open_to & 0o007 else "warn",
            f"others on this machine can look into {state}",
            f"run `chmod 700 {state}`",
        )
    else:
        yield passed("state folder", f"{state} is private")


def restored(config: AggregatorConfig) -> Iterator[Finding]:
    """Says nothing unless a restore was interrupted: half a state folder is not served."""
    from fedmap_aggregator.store.layout import check_restored

    try:
        check_restored(config)
    except StateError as error:
        yield failed_by("restore", error)


def disk_space(
    state: Path, answer_mib: int, free_of: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free
) -> Iterator[Finding]:
    """Room for a few of the largest answers?"""
    free, wanted = free_of(state) // _MIB, 2 * answer_mib
    finding = f"{free:,} MiB free on the disk of {state}"
    if free < _LEAST_MIB:
        yield failed("disk space", finding, "free some, or move the state folder to a larger disk")
    elif free < wanted:
        yield warned(
            "disk space",
            f"{finding}; two of the largest answers allowed need {wanted:,} MiB",
            "free some, or lower limits.max_answer_mib to what your studies need",
        )
    else:
        yield passed("disk space", finding)


def clock(state: Path, now: datetime.datetime) -> Iterator[Finding]:
    """A clock that was set back: files of this aggregator would come from the future."""
    newest = max(_times(state), default=0.0)
    ahead = datetime.datetime.fromtimestamp(newest, datetime.UTC) - now
    if ahead > _SKEW:
        yield failed(
            "clock",
            f"this machine's clock is behind: a file of this aggregator is {ahead.total_seconds() / 60:.0f} "
            "minutes in the future",
            "set the clock right (NTP); certificates and deadlines depend on it",
        )
    else:
        yield passed("clock", f"{now:%Y-%m-%d %H:%M} UTC, and no file is from the future")


def database(config: AggregatorConfig) -> Iterator[Finding]:
    """Can it be reached, and does it have the tables of this version?"""
    from fedmap_aggregator.store import read_url, schema_status
    from fedmap_aggregator.store.layout import database_url

    secret = config.database.url_file
    if secret is not None and secret.is_file() and stat.S_IMODE(secret.stat().st_mode) & 0o007:
        yield failed("database", f"others on this machine can read {secret}", f"run `chmod 600 {secret}`")
    url = database_url(config)
    place, status = read_url(url).place, schema_status(url)
    if status.state == "current":
        yield passed("database", f"{place} is reachable and up to date (revision {status.found})")
    elif status.state == "missing":
        yield passed("database", f"{place} is empty; `serve` makes its tables")
    elif status.state == "needs upgrade":
        yield warned(
            "database",
            f"{place} is at revision {status.found}, this version uses {status.expected}",
            "make a backup; `serve` upgrades it at its next start",
        )
    else:
        yield failed(
            "database",
            f"{place} was made by a newer version (revision {status.found}; known here: {status.expected})",
            "install the version of fedmap that was in use before",
        )


def port(config: AggregatorConfig, profile: OperatorProfile | None) -> Iterator[Finding]:
    """Free, served by this aggregator, or taken by somebody else?"""
    host, number = host_of(config.listen), port_of(config.listen)
    if not _answers(host, number):
        yield _bindable("port", "server.listen", host, number)
        return
    if profile is None:
        yield warned(
            "port",
            f"something serves {config.listen}; without a profile it cannot be asked who it is",
            "give --profile",
        )
        return
    # The own authority's certificate covers localhost; an external one may cover the public name only.
    near = config.pki.external is None and host in _ANY
    target = replace(profile, address=f"localhost:{number}") if near else profile
    asked = _asked("port", f"{config.listen} is served by this aggregator", target)
    if asked.verdict == "fail":
        asked = failed(
            "port",
            f"something answers on {config.listen}, and it is not this aggregator: {asked.message}",
            f"if the aggregator does not run, another program has its port (`ss -ltnp sport = :{number}`): "
            f"stop that, or set another port as server.listen; if it runs: {asked.hint}",
        )
    yield asked


def downloads(config: AggregatorConfig) -> Iterator[Finding]:
    """The port of HTTPS downloads, where they are on: served, free, or not to be had?"""
    if config.downloads.listen:
        yield _listener("downloads", config.downloads.listen, _answers)


def metrics(config: AggregatorConfig) -> Iterator[Finding]:
    """The port of metrics and health, where it is on: served, free, or not to be had?"""
    if config.metrics.listen:
        yield _listener(
            "metrics", config.metrics.listen, lambda host, number: is_telemetry(host, number, _SECONDS)
        )


def _listener(name: str, listen: str, answers: Callable[[str, int], bool]) -> Finding:
    host, number = host_of(listen), port_of(listen)
    if answers(host, number):
        return passed(name, f"{listen} answers")
    return _bindable(name, f"{name}.listen", host, number)


def _answers(host: str, number: int) -> bool:
    try:
        socket.create_connection(("localhost" if host in _ANY else host, number), timeout=_SECONDS).close()
    except OSError:
        return False
    return True


def remote(profile: OperatorProfile) -> Iterator[Finding]:
    """The way from here to the aggregator of a profile: name, port, handshake."""
    host, number = host_of(profile.address), port_of(profile.address)
    if not profile.proxy:
        try:
            found = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)
            yield passed("name", f"{host} is {found[0][4][0]}")
        except OSError:
            yield failed("name", f"{host} cannot be resolved", "check the address and this machine's DNS")
            return
        try:
            socket.create_connection((host, number), timeout=_SECONDS).close()
            yield passed("network", f"port {number} of {host} answers")
        except OSError as error:
            words = (error.strerror or str(error) or type(error).__name__).lower()
            yield failed(
                "network",
                f"port {number} of {host} does not answer: {words}",
                "check that the aggregator runs and that firewalls let this machine through",
            )
            return
    yield _asked("aggregator", f"{profile.address} is up, and knows operator {profile.name}", profile)


def _asked(name: str, finding: str, profile: OperatorProfile) -> Finding:
    """One mutual-TLS health call, then one that only an operator may make."""
    from fedmap_aggregator.operator.client import OperatorClient

    try:
        with OperatorClient(profile) as client:
            if not client.is_serving(_SECONDS):
                return warned(
                    name,
                    "the aggregator answers, and says that it is not ready",
                    "look in its log; it may be starting or stopping",
                )
            client.sites()
    except FedmapError as error:
        return failed_by(name, error)
    return passed(name, finding)


def _bindable(name: str, setting: str, host: str, number: int) -> Finding:
    fault = bind_fault(host, number, setting)
    if fault is not None:
        return failed_by(name, fault)
    return passed(name, f"{host}:{number} is free; the aggregator is not running")


def _times(state: Path) -> Iterator[float]:
    """When each file was last written. The aggregator may be running: files come and go."""
    for folder, _, names in os.walk(state):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                yield Path(folder, name).stat().st_mtime
