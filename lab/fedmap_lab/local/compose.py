"""The lab's part in the federation of docker-compose.yml: hand patients out, and show what came of it.

Every site there has a tray, a folder that it shares with nobody but the centre. `hand_out` puts each site's
patients there, the plan, and a note of who it is; `collect` reads what the operator, the T2 and the T3 site
left behind. What happens between is deploy/federation, which gives the services' own commands.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedmap.data.cohort_directory import SiteEntry, read_cohort_directory
from fedmap.errors import DataError, StateError
from fedmap.files.digests import sha256_hex
from fedmap.files.durable import write_durably
from fedmap.study.plan.reading import load_plan
from fedmap_lab.cohorts.making import make_cohort
from fedmap_lab.local.federation import LocalSite
from fedmap_lab.local.study import Record, StatusSeen
from fedmap_lab.local.tiers import PersonalReport, TierResults, predicted

PLACES: Mapping[str, int] = {"site-a": 1, "site-b": 1, "site-c": 1, "clinic": 2, "practice": 3}
"""The sites' services in docker-compose.yml, each with the tier that it plays."""
OWN_DATA = "own"
SEAT, PLAN = "site.json", "plan.toml"
_READABLE = 0o644


class Seat(Record):
    """Who sits at a place: written into its tray last, so that a seat means a whole tray."""

    site: str
    tier: int
    region: str
    data: str
    """Name of the patients' file beside this one."""
    data_sha256: str
    study: str
    plan_sha256: str
    rounds: int
    seed: int


@dataclass(frozen=True)
class Wanted:
    """What the researcher asks for."""

    plan: Path
    cohort: str
    """Name of a synthetic cohort, or `own`: the cohort directory `data`."""
    data: Path
    scale: float
    rounds: int
    seed: int


def hand_out(wanted: Wanted, trays: Path) -> dict[str, Seat]:
    """Fill the tray of every place, or see that it is filled with exactly this already."""
    with tempfile.TemporaryDirectory() as made:
        directory = wanted.data
        if wanted.cohort != OWN_DATA:
            directory = Path(made) / "cohort"
            make_cohort(wanted.cohort, directory, wanted.scale, wanted.seed)
        seats: dict[str, Seat] = {}
        for place, entry in _seated(read_cohort_directory(directory)):
            seats[place] = _fill(trays / place, entry, wanted)
    return seats


def _seated(entries: Sequence[SiteEntry]) -> Iterator[tuple[str, SiteEntry]]:
    waiting = {tier: [entry for entry in entries if entry.tier == tier] for tier in (1, 2, 3)}
    short = [
        f"{len(waiting[tier])} site(s) of tier {tier}, and {needed} are needed"
        for tier in (1, 2, 3)
        if len(waiting[tier]) < (needed := sum(1 for of in PLACES.values() if of == tier))
    ]
    if short:
        raise DataError(
            "cohort", tuple(short), hint="Three sites that train, one of tier 2 and one of tier 3 take part."
        )
    for place, tier in PLACES.items():
        yield place, waiting[tier].pop(0)


def _fill(tray: Path, entry: SiteEntry, wanted: Wanted) -> Seat:
    rows, plan = entry.path.read_bytes(), wanted.plan.read_bytes()
    seat = Seat(
        site=entry.site,
        tier=entry.tier,
        region=entry.region,
        data=f"patients{entry.path.suffix}",
        data_sha256=sha256_hex(rows),
        study=load_plan(wanted.plan).study.name,
        plan_sha256=sha256_hex(plan),
        rounds=wanted.rounds,
        seed=wanted.seed,
    )
    note = tray / SEAT
    if note.exists():
        if Seat.model_validate_json(note.read_bytes()) != seat:
            raise StateError(
                f"{tray} holds another federation: other data, plan, rounds or seed",
                hint="go back to the old settings, or start anew with `docker compose down --volumes`",
            )
        return seat
    tray.mkdir(parents=True, exist_ok=True)
    write_durably(tray / seat.data, rows, _READABLE)
    write_durably(tray / PLAN, plan, _READABLE)
    write_durably(note, seat.model_dump_json(indent=1).encode() + b"\n", _READABLE)
    return seat


@dataclass(frozen=True)
class Left:
    """Where the operator, the T2 and the T3 site leave what they have done."""

    centre: Path
    clinic: Path
    practice: Path
    trays: Path

    @property
    def awaited(self) -> tuple[Path, ...]:
        """Each is written last, when all that belongs to it is there."""
        return self.centre / "status.json", self.clinic / "personal" / "report.json", self.practice / SHOWN


SHOWN, PREDICTIONS = "predict.json", "predictions.csv"


def collect(left: Left) -> TierResults:
    """The results of all three tiers, once everything that is awaited is there."""
    status, report, shown = left.awaited
    (study,) = StatusSeen.model_validate_json(status.read_bytes()).studies
    clinic, practice = (_seat(left.trays / place) for place in ("clinic", "practice"))
    site = LocalSite(practice.site, practice.region, left.trays / "practice" / practice.data, practice.tier)
    plan = load_plan(left.trays / "practice" / PLAN)
    predictions = left.practice / PREDICTIONS
    return TierResults(
        study,
        {clinic.site: PersonalReport.model_validate_json(report.read_bytes())},
        {practice.site: predicted(shown.read_text(encoding="utf-8"), plan, site, predictions)},
    )


def keep(left: Left, out: Path) -> None:
    """Copy the T2 site's report and the T3 site's predictions beside the other results."""
    shutil.copytree(left.clinic / "personal", out / "personal", dirs_exist_ok=True)
    shutil.copyfile(left.practice / PREDICTIONS, out / PREDICTIONS)


def _seat(tray: Path) -> Seat:
    return Seat.model_validate_json((tray / SEAT).read_bytes())
