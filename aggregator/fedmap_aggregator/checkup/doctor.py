"""`doctor`: looks at everything the aggregator stands on and names the exact fault. It changes nothing.

With a configuration it examines this machine; with a profile alone it examines the way to an aggregator
elsewhere. Each check ends in ok, warn or fail, a finding, and a next step for whoever can take it.
What it looks at is in `identity` (certificates) and `machine` (folder, disk, port, database).
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.table import Table
from rich.text import Text

from fedmap.errors import FedmapError, StorageError
from fedmap.files.durable import try_writing
from fedmap.process.command_line import JsonValue, PlainTable
from fedmap.process.findings import Finding, any_failed, failed, failed_by, passed, warned
from fedmap.process.settings import read_config
from fedmap_aggregator.checkup import identity, machine
from fedmap_aggregator.config import NO_CONFIG, NOT_THERE, AggregatorConfig
from fedmap_aggregator.identity.initialise import profile_path
from fedmap_aggregator.identity.profile import OperatorProfile, read_profile

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def examine(config_path: Path, profile: Path | None, now: datetime.datetime) -> tuple[Finding, ...]:
    """All checks in the order in which faults follow from one another."""
    if profile is not None and not config_path.is_file():
        return tuple(_elsewhere(profile, now))
    try:
        config = read_config(config_path, AggregatorConfig, NO_CONFIG)
    except FedmapError as error:
        return (failed_by("config", error),)
    return (passed("config", f"{config_path} is in order"), *_here(config, profile, now))


def before_serving(config: AggregatorConfig, now: datetime.datetime) -> tuple[Finding, ...]:
    """What `serve` has to say before it starts: every finding that is not ok and does not stop it by itself.

    `StorageError` where the state folder is missing or cannot be written: nothing else would work then.
    """
    state = config.server.state
    if not state.is_dir():
        raise StorageError(f"{state} is missing", hint=NOT_THERE)
    try_writing(state)
    found = (*_guarded("state folder", lambda: machine.state_folder(state)), *_kept(config, now))
    return tuple(one for one in found if one.verdict != "ok")


def report_table(checks: tuple[Finding, ...]) -> Table:
    """For a terminal."""
    table = PlainTable(("check", "", "finding"))
    for check in checks:
        finding = Text(check.message)
        if check.hint and check.verdict != "ok":
            finding.append(f"\n→ {check.hint}", style="dim")
        table.add(check.name, Text(check.verdict, style=_STYLES[check.verdict]), finding)
    return table


def report_json(checks: tuple[Finding, ...]) -> JsonValue:
    """For programs."""
    worst = max((check.verdict for check in checks), key=("ok", "warn", "fail").index)
    return {
        "status": worst,
        "checks": [
            {"check": one.name, "status": one.verdict, "finding": one.message, "next_step": one.hint}
            for one in checks
        ],
    }


def _here(config: AggregatorConfig, profile: Path | None, now: datetime.datetime) -> Iterator[Finding]:
    """The checks of the aggregator's own machine."""
    state = config.server.state
    yield from _guarded("state folder", lambda: machine.state_folder(state))
    if not state.is_dir() or not os.access(state, os.R_OK | os.X_OK):
        return  # nothing in it could be looked at
    restored = tuple(_guarded("restore", lambda: machine.restored(config)))
    if restored:
        yield from restored
        return  # what is half there would only raise further alarms
    yield from _kept(config, now)
    yield from _guarded("release key", lambda: identity.release_key(config))
    yield from _guarded("database", lambda: machine.database(config))
    yield from _guarded("downloads", lambda: machine.downloads(config))
    yield from _guarded("metrics", lambda: machine.metrics(config))
    chosen = profile or profile_path(config)
    if config.pki.external is not None and profile is None:
        yield from _guarded("port", lambda: machine.port(config, None))
        return
    found: list[OperatorProfile] = []
    yield from _guarded("profile", lambda: _profile(chosen, now, found))
    reader = found[0] if found else None
    yield from _guarded("port", lambda: machine.port(config, reader))
    if reader is not None and reader.address != config.server.address:
        yield warned(
            "profile address",
            f"the profile dials {reader.address}, the configuration says {config.server.address}",
            "make a new profile with `fedmap-aggregator operator add`, if the address has changed",
        )


def _kept(config: AggregatorConfig, now: datetime.datetime) -> Iterator[Finding]:
    """What is looked at before each start too."""
    state = config.server.state
    yield from _guarded("disk space", lambda: machine.disk_space(state, config.limits.max_answer_mib))
    yield from _guarded("clock", lambda: machine.clock(state, now))
    yield from _guarded("certificates", lambda: identity.certificates(config, now))


def _elsewhere(profile: Path, now: datetime.datetime) -> Iterator[Finding]:
    """The checks of an operator's machine: the profile, then the way to the aggregator."""
    found: list[OperatorProfile] = []
    yield from _guarded("profile", lambda: _profile(profile, now, found))
    if found:
        yield from _guarded("aggregator", lambda: machine.remote(found[0]))


def _profile(path: Path, now: datetime.datetime, found: list[OperatorProfile]) -> Iterator[Finding]:
    profile = read_profile(path)
    checks = list(identity.operator_profile(profile, now))
    yield from checks
    if not any_failed(checks):
        found.append(profile)


def _guarded(name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """A check that cannot even look has found something too."""
    try:
        yield from check()
    except FedmapError as error:
        yield failed_by(name, error)
    except OSError as error:
        yield failed(
            name,
            f"cannot be examined: {error.strerror or type(error).__name__}: {error.filename or ''}",
            "run doctor as the account that runs the aggregator",
        )
