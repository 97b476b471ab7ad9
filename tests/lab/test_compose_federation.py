"""The lab's part in the federation of docker-compose.yml."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedmap.data.cohort_directory import read_cohort_directory
from fedmap.errors import DataError, StateError
from fedmap.files.digests import sha256_hex
from fedmap_lab.cli.output import PLANS
from fedmap_lab.cohorts.making import make_cohort
from fedmap_lab.local.compose import OWN_DATA, PLACES, Wanted, hand_out

WANTED = Wanted(PLANS / "interval.toml", "interval", Path("none"), scale=0.02, rounds=3, seed=7)


def contents(trays: Path) -> dict[str, bytes]:
    return {str(path.relative_to(trays)): path.read_bytes() for path in trays.rglob("*") if path.is_file()}


def test_every_site_gets_its_own_patients_and_the_same_again_changes_nothing(tmp_path: Path) -> None:
    seats = hand_out(WANTED, tmp_path)
    assert {place: seat.tier for place, seat in seats.items()} == PLACES
    assert len({seat.data_sha256 for seat in seats.values()}) == len(PLACES)
    first = contents(tmp_path)
    assert sha256_hex(first["clinic/patients.csv"]) == seats["clinic"].data_sha256
    assert first["practice/plan.toml"] == WANTED.plan.read_bytes()
    assert hand_out(WANTED, tmp_path) == seats
    assert contents(tmp_path) == first


def test_other_settings_are_refused_while_the_old_federation_is_there(tmp_path: Path) -> None:
    hand_out(WANTED, tmp_path)
    before = contents(tmp_path)
    with pytest.raises(StateError, match="another federation") as refused:
        hand_out(replace(WANTED, rounds=4), tmp_path)
    assert "down --volumes" in refused.value.hint
    assert contents(tmp_path) == before


def test_a_cohort_of_ones_own_needs_sites_of_every_tier(tmp_path: Path) -> None:
    cohort = tmp_path / "cohort"
    make_cohort("interval", cohort, 0.02, 7)
    own = replace(WANTED, cohort=OWN_DATA, data=cohort)
    assert {seat.site for seat in hand_out(own, tmp_path / "trays").values()} == {
        entry.site for entry in read_cohort_directory(cohort)
    }
    listed = (cohort / "sites.csv").read_text().splitlines()
    (cohort / "sites.csv").write_text("\n".join(line for line in listed if ",3," not in line))
    with pytest.raises(DataError, match="0 site\\(s\\) of tier 3"):
        hand_out(own, tmp_path / "others")
