"""What `compare` leaves for the report, the report itself, and what `report` and `explain` make of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmap_lab.cli.main import app
from fedmap_lab.report.explaining import explain
from fedmap_lab.report.facts.reading import read_facts
from fedmap_lab.report.facts.statistics import compute
from fedmap_lab.report.writing import write_report
from fedmap_lab.simulation.kept_models import read_models
from tests.lab.comparison.conftest import read

pytestmark = pytest.mark.xdist_group("comparison")


def test_compare_writes_a_report_and_says_where(compared: tuple[Path, str]) -> None:
    folder, printed = compared
    assert "report.html" in "".join(printed.split())
    page = (folder / "out" / "report.html").read_text()
    assert "A toy study" in page
    assert "T1 has 3 sites: no test between methods is possible" in page
    assert (folder / "out" / "figures" / "scores-by-tier.pdf").is_file()


def test_models_are_kept_of_the_first_seed_and_of_methods_with_personal_models_only(
    compared: tuple[Path, str],
) -> None:
    out = compared[0] / "out"
    kept = {path.name for path in (out / "models").iterdir()}
    assert {"fedmap", "fedmap-quadratic", "fedmap-sketch", "ditto", "pfedme", "pfedbayes"} <= kept
    assert not kept & {"individual", "pooled", "fedavg", "fedprox", "scaffold", "pfedgp"}
    models = read_models(out / "models" / "fedmap-sketch")
    assert models.seed == 0
    assert models.names == ("healthy", "one", "two")
    assert models.prior is not None
    assert models.prior.sketch == 128


def test_calibration_bins_have_no_small_counts_and_no_site(compared: tuple[Path, str]) -> None:
    rows = read(compared[0] / "out" / "calibration.csv")
    assert {row["seed"] for row in rows if row["method"] == "fedmap"} == {"0", "1"}
    assert all(int(row["rows"]) >= 10 for row in rows), "the plan's limits.min_cell"
    assert "site" not in rows[0]
    for row in rows:
        assert float(row["low"]) <= float(row["observed"]) <= float(row["high"])


def test_a_report_written_anew_from_the_tables_is_the_same_page(compared: tuple[Path, str]) -> None:
    out = compared[0] / "out"
    before = {path: path.read_bytes() for path in (out / "report.html", out / "gains.csv")}
    write_report(out)
    assert {path: path.read_bytes() for path in before} == before


def test_explain_speaks_of_layers_and_sites_and_of_a_method_without_a_known_prior(
    compared: tuple[Path, str], tmp_path: Path
) -> None:
    out = compared[0] / "out"
    done = CliRunner().invoke(app, ["explain", "--study", str(out), "--out", str(tmp_path)])
    assert done.exit_code == 0
    assert "convex part" in done.stdout
    assert "3 sites are too few to look for groups" in " ".join(done.stdout.split())
    assert {"prior-by-layer.png", "site-distances.pdf", "layers.csv", "explanation.txt"} <= {
        path.name for path in tmp_path.iterdir()
    }
    ditto = explain(out, "ditto", tmp_path)
    assert "no learned prior" in " ".join(ditto.layers)
    assert not (tmp_path / "prior-by-round.png").exists(), "what the last prior had and this one has not"


def test_the_terminal_has_the_medians_of_the_report(compared: tuple[Path, str]) -> None:
    folder, printed = compared
    statistics = compute(read_facts(folder / "out"))
    assert [tier.tier for tier in statistics.tiers] == [1, 2, 3]
    for tier in statistics.tiers:
        table = printed.split(f"T{tier.tier}, ")[1].split("└")[0]
        found = dict(re.findall(r"│ (\S+) +│ (\d\.\d{3}) ", table))
        assert found == {row.method: f"{row.median:.3f}" for row in tier.methods}
