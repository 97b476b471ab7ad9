"""docs/clinic.md: a clinic copies its commands one by one, and ends with predictions."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from tests.site_agent.tier_bundles import ROOT, fedmap_site, patients, trained, write_table

PAGE = (ROOT / "docs" / "clinic.md").read_text(encoding="utf-8")


def commands() -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", PAGE, flags=re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def test_the_clinics_page_leads_from_a_file_to_predictions_as_written(tmp_path: Path) -> None:
    study = trained(tmp_path)
    study.bundle(tmp_path, tier=3)
    people = patients(60, seed=4)
    write_table(tmp_path / "patients.csv", people, event=None, grade=None, years=None, happened=None)
    printed = []
    for command in commands():
        program, *arguments = command.split()
        assert program == "fedmap-site"
        arguments = [study.fingerprint if word == "FINGERPRINT" else word for word in arguments]
        done = fedmap_site(*arguments, folder=tmp_path).done()
        printed.append(done.stdout)
    with (tmp_path / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 60
    assert list(rows[0]) == ["row", "probability", "class"]
    assert {row["class"] for row in rows} == {"well", "ill"}
    assert "9" in printed[0]  # the numbered steps
    assert "Intended use" in printed[2] or "intended use" in printed[2].lower()


def test_every_message_the_page_explains_is_one_the_program_gives() -> None:
    source = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("common/fedmap/bundles", "common/fedmap/data", "site_agent")
        for path in sorted((ROOT / folder).glob("*.py"))
    )
    for name in re.findall(r"`step \d, ([a-z ]+)`", PAGE):
        assert f'"{name}"' in source, name
    assert "check the unit" in source
