"""The folder of a comparison: one durable record for each finished job, so that nothing is done twice.

A record is whole or absent (temp file, fsync, rename). The description says what the records belong to; a
folder of another plan, other data or another budget is refused, never mixed. One process at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from fedmap.errors import FedmapError
from fedmap.files.durable import FolderLock, make_folder, read_file, remove_leftovers, write_durably
from fedmap_lab.comparison.request import IDENTITY, Identity
from fedmap_lab.comparison.results import Job, JobResult
from fedmap_lab.simulation.kept_models import write_models

_RUN = re.compile(r"run-(?P<method>.+)-(?P<seed>\d+)-0\.json")  # as Job.key has it
_IN_USE = (
    "wait until the other comparison has ended, or stop it (this command then goes on where it was); "
    "or give --out another directory"
)
_WORDS = {
    "plan_digest": "another study plan",
    "data_digest": "other data",
    "rounds": "another number of rounds",
    "trials": "another number of tuning trials",
    "engine": "another engine",
    "fedmap": "another version of FedMAP",
}


class Records:
    """Finished jobs, by key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "records"
        self._models = folder / "models"

    def find(self, job: Job) -> JobResult | None:
        """What an equal job left; None where it has still to be done."""
        path = self._folder / f"{job.key}.json"
        if not path.is_file():
            return None
        try:
            result = JobResult.model_validate_json(read_file(path))
        except ValidationError as error:
            cut = any(fault["type"] == "json_invalid" for fault in error.errors())
            raise FedmapError(
                f"{path}: this record is damaged (cut short or changed)"
                if cut
                else f"{path}: not a record of this version",
                hint="delete this one file and give the same command again: its job is done again, "
                "nothing else",
            ) from error
        return result if result.job == job else None

    def runs(self) -> tuple[tuple[str, int], ...]:
        """Method and seed of every run that has a record, whether it is asked for or not."""
        found = (_RUN.fullmatch(path.name) for path in sorted(self._folder.glob("run-*.json")))
        return tuple((name["method"], int(name["seed"])) for name in found if name)

    def keep(self, result: JobResult) -> None:
        """Models first: a job with a record has all that it leaves."""
        if result.models:
            write_models(self._models / result.job.method, result.models)
        write_durably(self._folder / f"{result.job.key}.json", result.model_dump_json().encode(), mode=0o644)


@contextmanager
def comparison_folder(out: Path, identity: Identity) -> Iterator[Records]:
    """Opens OUT for one comparison: a new or empty folder, or one of the same identity."""
    new = not (out / IDENTITY).is_file()
    if new and out.exists() and not (out.is_dir() and all(path.name == ".lock" for path in out.iterdir())):
        raise FedmapError(
            f"{out} holds something other than a comparison",
            hint="give --out a new directory, or empty this one yourself",
        )
    make_folder(out / "records", mode=0o755)
    with FolderLock(out / ".lock", _IN_USE):
        if new:
            write_durably(out / IDENTITY, identity.model_dump_json(indent=2).encode() + b"\n", mode=0o644)
        else:
            _require_same(out, identity)
        remove_leftovers(out)
        remove_leftovers(out / "records")
        yield Records(out)


def _require_same(out: Path, identity: Identity) -> None:
    try:
        before = Identity.model_validate_json(read_file(out / IDENTITY))
    except ValidationError as error:
        raise FedmapError(
            f"{out / IDENTITY}: not written by this version", hint="give --out a new directory"
        ) from error
    changed = [word for name, word in _WORDS.items() if getattr(before, name) != getattr(identity, name)]
    if changed:
        raise FedmapError(
            f"{out} holds a comparison of {' and '.join(changed)}: it cannot be resumed with this one",
            hint="give --out a new directory, or go back to what the first comparison was made with",
        )
