"""The server app: one study from its first node to a folder that can be released.

Settings come from the run's configuration, which `fedmap-flower` writes: the study's terms, how many sites to
wait for, and where the result goes on the SuperLink's machine. A study that fails ends the run with its
error, and leaves `failed.json` in place of a result.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from logging import ERROR, INFO
from pathlib import Path

import torch
from flwr.app import Context
from flwr.common import log
from flwr.serverapp import Grid, ServerApp

from fedmap.errors import ConfigError, ConflictError, FedmapError
from fedmap.files.durable import make_folder, write_durably
from fedmap.study.terms import StudyTerms, parse_terms
from fedmap_flower.centre.outcome import write_outcome
from fedmap_flower.centre.strategy import FedMAP

FAILED = "failed.json"
_HINT = "Start the run with `fedmap-flower`, which writes them."


@dataclass(frozen=True)
class RunSettings:
    """What a run is told."""

    terms: StudyTerms
    sites: int
    out: Path


def run_settings(config: Mapping[str, object]) -> RunSettings:
    """From Flower's run configuration; every problem at once."""
    terms, sites, out = config.get("terms"), config.get("sites"), config.get("out")
    problems = []
    if not isinstance(terms, str) or not terms:
        problems.append("terms: the study's terms are missing")
    if not isinstance(sites, int) or sites < 1:
        problems.append("sites: must say how many sites to wait for")
    if not isinstance(out, str) or not Path(out).is_absolute():
        problems.append("out: must be an absolute path on the SuperLink's machine")
    if problems:
        raise ConfigError("the run's configuration", tuple(problems), hint=_HINT)
    return RunSettings(parse_terms(str(terms)), int(str(sites)), Path(str(out)))


def make_server_app() -> ServerApp:
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        run_study(grid, context.run_config)

    app.main()(main)
    return app


def run_study(grid: Grid, config: Mapping[str, object]) -> FedMAP:
    """The whole study. Whatever fails is raised: Flower then ends the run as failed."""
    torch.set_num_threads(1)
    settings = run_settings(config)
    _claim(settings.out)
    with tempfile.TemporaryDirectory(prefix="fedmap-flower-") as scratch:
        strategy = FedMAP(settings.terms, Path(scratch))
        try:
            first = strategy.open(grid, settings.sites)
            strategy.start(grid, first, settings.terms.rounds, timeout=strategy.deadline)
            strategy.close(grid)
            write_outcome(settings.out, strategy)
        except FedmapError as error:
            log(ERROR, "%s", error)
            _leave_word(settings.out, strategy, error)
            raise
    log(INFO, "the study is complete: %s", settings.out)
    return strategy


def _claim(out: Path) -> None:
    """An empty folder, before anything is trained for it."""
    make_folder(out, mode=0o755)
    if any(path.name != FAILED for path in out.iterdir()):
        raise ConflictError(f"{out} is not empty", hint="Give the run a new folder; results never mix.")
    (out / FAILED).unlink(missing_ok=True)


def _leave_word(out: Path, strategy: FedMAP, error: FedmapError) -> None:
    told = {
        "study": strategy.terms.study,
        "rounds_done": len(strategy.rounds),
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
        "refusals": [
            {"site": one.site, "task": one.task, "code": one.code, "reason": one.reason}
            for one in strategy.refused
        ],
    }
    write_durably(out / FAILED, json.dumps(told, indent=1, ensure_ascii=False).encode() + b"\n", mode=0o644)
