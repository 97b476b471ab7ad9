from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.forked_programs import run_forked
from tests.lab.conftest import BINARY_PLAN, MakeCohort

SITES = {"one": (1, 120), "two": (1, 100), "four": (2, 60), "five": (3, 50)}


def lab(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_forked("fedmap-lab", [*map(str, arguments)], os.environ)


def simulated(folder: Path, cohort: Path, *more: str) -> subprocess.CompletedProcess[str]:
    (folder / "plan.toml").write_text(BINARY_PLAN)
    where = ("--plan", folder / "plan.toml", "--data", cohort, "--out", folder / "out")
    return lab("simulate", *where, *more)


def test_a_command_loads_what_is_heavy_only_when_it_works() -> None:
    script = "import sys, fedmap_lab.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_simulate_prints_a_table_and_writes_the_results(make_cohort: MakeCohort, tmp_path: Path) -> None:
    done = simulated(tmp_path, make_cohort(SITES), "--rounds", "2")
    assert done.returncode == 0, done.stderr
    assert "AUROC" in done.stdout
    assert {"metrics.csv", "mu.safetensors", "psi.safetensors", "convergence.png", "personal"} <= {
        path.name for path in (tmp_path / "out").iterdir()
    }


def test_simulate_answers_in_json_alone_on_request(make_cohort: MakeCohort, tmp_path: Path) -> None:
    done = simulated(tmp_path, make_cohort(SITES), "--rounds", "1", "--engine", "loop", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sites"] == {"tier_1": 2, "tier_2": 1, "tier_3": 1}


def test_a_faulty_plan_gives_all_problems_and_a_hint_and_no_stack_trace(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(
        BINARY_PLAN.replace('metric = "auroc"', 'metric = "beauty"').replace("epochs = 3", "epoks = 3")
    )
    done = lab("simulate", "--plan", tmp_path / "plan.toml", "--data", tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 1
    assert "task.metric" in done.stderr
    assert "epoks" in done.stderr
    assert "hint:" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_cohort_is_named_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(BINARY_PLAN)
    done = lab(
        "simulate", "--plan", tmp_path / "plan.toml", "--data", tmp_path / "none", "--out", tmp_path / "out"
    )
    assert done.returncode == 1
    assert "hint:" in done.stderr
    assert "Traceback" not in done.stderr


def test_import_of_a_folder_without_the_files_says_where_to_get_them(tmp_path: Path) -> None:
    done = lab("import", "uci-heart", "--source", tmp_path, "--out", tmp_path / "cohort")
    assert done.returncode == 1
    assert "UCI" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_place_that_cannot_be_written_to_is_said_before_anything_trains(
    make_cohort: MakeCohort, tmp_path: Path
) -> None:
    (tmp_path / "plan.toml").write_text(BINARY_PLAN.replace("A toy study", "Risk [/10y]"))
    (tmp_path / "file").write_text("")
    plan, data = tmp_path / "plan.toml", make_cohort(SITES)
    done = lab("simulate", "--plan", plan, "--data", data, "--out", tmp_path / "file" / "out")
    assert done.returncode == 74
    assert "hint:" in done.stderr
    assert "Traceback" not in done.stderr


def test_brackets_in_a_title_are_printed_as_they_are(make_cohort: MakeCohort, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(BINARY_PLAN.replace("A toy study", "Risk [/10y]"))
    plan, data, out = tmp_path / "plan.toml", make_cohort(SITES), tmp_path / "[out]"
    done = lab("simulate", "--plan", plan, "--data", data, "--out", out, "--rounds", "1")
    assert done.returncode == 0, done.stderr
    assert "Risk [/10y]" in done.stdout
    assert "[out]" in done.stdout
