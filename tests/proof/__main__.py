"""`python -m tests.proof [compare|record] [services] [lab] [flower] [--out FOLDER]`: see the package.

Exit codes: 0 nothing differs; 1 something does; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.proof import record
from tests.proof.agreement import disagreements
from tests.proof.findings import Findings
from tests.proof.flower import prepare_centre, run_flower
from tests.proof.lab import ENGINES, run_lab
from tests.proof.plans import Proved, write_plans
from tests.proof.services import run_services

DRIVERS = ("services", "lab", "flower")


def main() -> int:
    wanted = _arguments()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fedmap-proof-") as scratch:
        folder = wanted.out or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        studies = write_plans(folder / "plans")
        found = _run(studies, wanted.drivers or DRIVERS, folder)
    count = sum(len(of_driver) for of_driver in found.values())
    compared, wrong = disagreements(studies, found)
    _say(f"{count} findings of {len(found)} studies in {time.monotonic() - began:.0f} seconds")
    _say(f"{compared} findings compared between drivers, which are to be equal bit for bit")
    if wanted.what == "record":
        if not wrong:
            record.write(found)
            _say(f"recorded in {record.RECORDED.name}")
    else:
        known = record.read()
        wrong += record.differences(known, found)
        _say(_what_is_compared(known))
    for difference in wrong:
        _say(str(difference))
    _say(f"{len(wrong)} difference(s)" if wrong else "no difference")
    return 1 if wrong else 0


def _run(studies: tuple[Proved, ...], drivers: Sequence[str], folder: Path) -> dict[str, Findings]:
    """Those that wait much beside those that compute much; by "plan / driver"."""
    chains: list[Callable[[], dict[str, Findings]]] = []
    if "services" in drivers:
        chains.append(lambda: _services(studies, folder / "services"))
    chains.append(lambda: _one_by_one(studies, drivers, folder))
    found: dict[str, Findings] = {}
    with ThreadPoolExecutor(len(chains)) as side_by_side:
        for future in [side_by_side.submit(chain) for chain in chains]:
            found |= future.result()
    return found


def _services(studies: tuple[Proved, ...], folder: Path) -> dict[str, Findings]:
    return {f"{name} / services": found for name, found in run_services(studies, folder).items()}


def _one_by_one(studies: tuple[Proved, ...], drivers: Sequence[str], folder: Path) -> dict[str, Findings]:
    found: dict[str, Findings] = {}
    if "lab" in drivers:
        (folder / "lab").mkdir()
        for study in studies:
            for engine in ENGINES:
                found[f"{study.name} / lab-{engine}"] = run_lab(engine, study, folder / "lab")
    if "flower" in drivers:
        (folder / "flower").mkdir()
        centre = prepare_centre(folder / "flower")
        for study in studies:
            found[f"{study.name} / flower"] = run_flower(study, folder / "flower", centre)
    return found


def _what_is_compared(known: record.Record) -> str:
    here = record.machine()
    if known.machine == here:
        return "the machine is of the type of the record: digests were compared, every bit counts"
    differs = ", ".join(f"{key} {known.machine.get(key)} → {here[key]}" for key in here)
    return (
        f"another machine than the record's ({differs}): only figures were compared, within "
        f"{record.RELATIVE:.0%} or {record.ABSOLUTE} whichever is more"
    )


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("compare", "record"), default="compare")
    parser.add_argument("drivers", nargs="*", metavar="driver", help=", ".join(DRIVERS))
    parser.add_argument("--out", type=Path, help="an empty folder for what the studies write")
    wanted = parser.parse_args()
    unknown = set(wanted.drivers) - set(DRIVERS)
    if unknown:
        parser.error(f"no such driver: {', '.join(sorted(unknown))}")
    if wanted.what == "record" and wanted.drivers:
        parser.error("a record is of all drivers")
    if wanted.out is not None:
        wanted.out = wanted.out.resolve()
    return wanted


if __name__ == "__main__":
    raise SystemExit(main())
