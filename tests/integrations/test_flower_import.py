"""A Flower run becomes a signed bundle that a clinic predicts with; a changed folder does not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fedmap.bundles.manifest import MANIFEST
from fedmap.errors import FedmapError
from fedmap_aggregator.cli.flower import import_flower_command
from fedmap_aggregator.cli.options import Here
from fedmap_flower.centre.server import run_study
from fedmap_flower.records import read_order
from tests.forked_programs import run_forked
from tests.integrations.conftest import ROUNDS, grid_in_hand, in_flower, nodes_of, terms_of
from tests.lab.conftest import BINARY_PLAN
from tests.services.studies import SmallStudy, small_study


def command(folder: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_forked(program, arguments, os.environ, folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[SmallStudy, Path]:
    """A study and the folder of its run."""
    folder = tmp_path_factory.mktemp("finished")
    study = small_study(folder / "study", rounds=ROUNDS)
    terms = terms_of(study)
    in_flower()
    run_study(
        grid_in_hand(nodes_of(study, terms, folder)),
        {"terms": terms.to_json(), "sites": 3, "out": str(folder / "out")},
    )
    return study, folder / "out"


@pytest.fixture
def out(finished: tuple[SmallStudy, Path], tmp_path: Path) -> Path:
    """The run's folder, to be changed."""
    return shutil.copytree(finished[1], tmp_path / "out")


@pytest.fixture(scope="module")
def centre(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An aggregator that was set up, and does not run."""
    folder = tmp_path_factory.mktemp("centre")
    done = command(folder, "fedmap-aggregator", "init", "--address", "localhost:39443")
    assert done.returncode == 0, done.stderr
    return folder


def test_a_flower_run_is_released_verified_and_predicts(
    finished: tuple[SmallStudy, Path], out: Path, centre: Path, tmp_path: Path
) -> None:
    study, imported = finished[0], {}
    for tier in ("2", "3"):
        options = ["--tier", tier, "--to", str(tmp_path), "--json"]
        done = command(centre, "fedmap-aggregator", "bundle", "import-flower", str(out), *options)
        assert done.returncode == 0, done.stderr
        imported[tier] = json.loads(done.stdout)
        assert imported[tier]["made"]
    again = command(centre, "fedmap-aggregator", "bundle", "import-flower", str(out), "--tier", "3", "--json")
    assert json.loads(again.stdout) == {**imported["3"], "made": False, "file": None}
    trusted = ["--fingerprint", imported["3"]["key_fingerprint"], "--store", str(tmp_path / "bundles")]
    for tier in ("2", "3"):
        file = imported[tier]["file"]
        verified = command(tmp_path, "fedmap-site", "bundle", "verify", file, *trusted)
        assert verified.returncode == 0, verified.stderr
    file = imported["3"]["file"]
    installed = command(tmp_path, "fedmap-site", "bundle", "install", file, *trusted)
    assert installed.returncode == 0, installed.stderr
    options = ["--data", str(study.sites[0].data), "--bundle", "toy-t3", "--out", "predictions.csv"]
    predicted = command(tmp_path, "fedmap-site", "predict", *options, "--store", str(tmp_path / "bundles"))
    assert predicted.returncode == 0, predicted.stderr
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 161


def _tell(run: dict[str, Any], **figures: object) -> None:
    """Other statistics of the first site."""
    told = run["sites"][0]
    told["statistics"] = json.dumps({**json.loads(told["statistics"]), **figures})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda run: run["rounds"].pop(), "rounds are missing"),
        (lambda run: run.update(terms_digest="0" * 64), "the terms have another digest"),
        (lambda run: run["rounds"][0]["weights"].update(a=5.0), "weights are not such"),
        (lambda run: run["rounds"][0].update(absent=["a"]), "an absent site counts that sent nothing"),
        (lambda run: run["rounds"][1].update(absent=["a"]), "counts in a round under the prior"),
        (lambda run: run["rounds"][1].update(absent=["a", "a"]), "not sorted, or listed twice"),
        (lambda run: run["sites"][0].update(evaluation='{"test_rows": "3"}'), "below the plan's floor"),
        (lambda run: run["sites"][0].update(statistics='{"rows": "200", "events": "3"}'), "floor"),
        (lambda run: run["rule"].update(threshold=7.0), "no probability"),
        (lambda run: run.update(prior_digest="0" * 64), "is not the prior of its run"),
        (lambda run: run.update(surprise=1), "cannot be read"),
        (lambda run: run["sites"][0].update(region="\x1b[2J\nnorth"), "is not a region"),
        (lambda run: run.update(runtime="flower\x1b]0;x\x07"), "the runtime's name is too long or not"),
        (lambda run: run["rule"].update(threshold_note="\x1b[2Japproved"), "the rule's note is too long"),
        (
            lambda run: run.update(refusals=[{"site": "x", "task": "rule", "code": "SIGNED", "reason": ""}]),
            "unknown code",
        ),
        (lambda run: _tell(run, rows=str(10**15)), "the statistics are not of"),
        (lambda run: _tell(run, inputNames=[], layoutDigest="none"), "digest of the model's inputs is none"),
    ],
    ids=[
        "round",
        "terms",
        "weights",
        "absent first",
        "absent under the prior",
        "absent twice",
        "small cell",
        "events",
        "rule",
        "prior",
        "key",
        "region",
        "runtime",
        "note",
        "code",
        "rows",
        "layout",
    ],
)
def test_a_folder_that_was_changed_is_not_released(
    change: object, reason: str, out: Path, centre: Path
) -> None:
    run = json.loads((out / "run.json").read_text())
    assert callable(change)
    change(run)
    (out / "run.json").write_text(json.dumps(run))
    with pytest.raises(FedmapError) as refused:
        import_flower_command(Here(config=centre / "aggregator.toml"), out)
    assert reason in str(refused.value)


@pytest.fixture(scope="module")
def finished_without_a_node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of three consensus rounds and one under the prior; a node missed the second."""
    folder = tmp_path_factory.mktemp("consensus")
    plan = BINARY_PLAN.replace("epochs = 3", "epochs = 3\nconsensus_share = 0.75")
    study = small_study(folder / "study", plan.replace('name = "toy"', 'name = "toy-consensus"'), rounds=4)
    terms = terms_of(study)
    in_flower()
    nodes = nodes_of(study, terms, folder)
    nodes[1].spoil = lambda order, reply: None if read_order(order.content).task.id == "round-2" else reply
    settings = {"terms": terms.to_json(), "sites": 3, "out": str(folder / "out")}
    run_study(grid_in_hand(nodes), settings)
    return folder / "out"


def test_a_release_does_not_count_an_update_again_that_stood_for_a_missing_node(
    finished_without_a_node: Path, centre: Path, tmp_path: Path
) -> None:
    import_flower_command(Here(config=centre / "aggregator.toml"), finished_without_a_node, to=tmp_path)
    with zipfile.ZipFile(tmp_path / "toy-consensus-t2-1.fedmap") as bundle:
        lineage = json.loads(bundle.read(MANIFEST))["lineage"]
    assert (lineage["sites"], lineage["accepted_updates"]) == (3, 3 + 2 + 3 + 3)


def test_a_run_whose_consensus_round_drops_a_node_is_not_released(
    finished_without_a_node: Path, centre: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(finished_without_a_node, tmp_path / "out")
    run = json.loads((out / "run.json").read_text())
    dropped = run["rounds"][1]
    assert dropped["absent"] == ["a"]
    share = dropped["weights"].pop("a")
    dropped.update(absent=[], weights={site: one / (1 - share) for site, one in dropped["weights"].items()})
    (out / "run.json").write_text(json.dumps(run))
    with pytest.raises(FedmapError, match="leaves out a site that sent before"):
        import_flower_command(Here(config=centre / "aggregator.toml"), out)


def test_a_run_in_which_too_few_nodes_answered_a_round_is_not_released(
    finished_without_a_node: Path, centre: Path, tmp_path: Path
) -> None:
    """Two of three are the quorum: who counts with an earlier update did not answer."""
    out = shutil.copytree(finished_without_a_node, tmp_path / "out")
    run = json.loads((out / "run.json").read_text())
    assert run["rounds"][1]["absent"] == ["a"]
    run["rounds"][1]["absent"] = ["a", "b"]
    (out / "run.json").write_text(json.dumps(run))
    with pytest.raises(FedmapError, match="a round is below the plan's quorum"):
        import_flower_command(Here(config=centre / "aggregator.toml"), out)


def test_a_folder_without_a_complete_run_is_refused(centre: Path, tmp_path: Path) -> None:
    done = command(centre, "fedmap-aggregator", "bundle", "import-flower", str(tmp_path))
    assert done.returncode == 1
    assert "not complete" in done.stderr.replace("\n", " ")
