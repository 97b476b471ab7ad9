"""Real SuperLink and SuperNode processes over TLS, and Flower on Ray, beside the simulator."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

from fedmap.data.cohort_directory import read_cohort_directory
from fedmap.study.models import model_of
from fedmap.study.run_folder import read_run
from fedmap.study.tensors.parameter_files import decode_parameters, decode_prior
from fedmap.study.terms import StudyTerms
from fedmap_flower.processes.commands import FlowerRun, command_path, environment, run_to_its_end
from fedmap_flower.processes.deployment import SUPERLINK, LocalDeployment
from tests.integrations.conftest import POLICY, ROUNDS, terms_of
from tests.services.studies import SEED, SmallStudy, small_study


def assert_same_as_simulated(study: SmallStudy, terms: StudyTerms, out: Path) -> None:
    """μ and ψ, bit for bit."""
    simulated = study.simulated().trained.prior
    assert simulated is not None
    prior = decode_prior(model_of(terms.plan).network, terms.plan.prior, read_run(out).prior).prior
    assert torch.equal(prior.mu, simulated.mu)
    assert torch.equal(prior.psi, simulated.psi)
    assert torch.equal(prior.buffers.mean, simulated.buffers.mean)
    assert torch.equal(prior.buffers.variance, simulated.buffers.variance)


def test_a_deployment_over_tls_gives_the_simulators_models_bit_for_bit(tmp_path: Path) -> None:
    study = small_study(tmp_path / "study", sites={"a": 160, "b": 120}, rounds=ROUNDS)
    terms, folder, out = terms_of(study), tmp_path / "deployment", tmp_path / "out"
    with LocalDeployment(folder) as deployment:
        (folder / "policy.toml").write_text(POLICY)
        for entry in read_cohort_directory(study.cohort):
            deployment.register(entry.site)
            options = {"data": str(entry.path), "policy": str(folder / "policy.toml"), "terms": terms.digest}
            options["state"] = str(folder / f"state-{entry.site}")
            deployment.start_node(entry.site, options)
        config: dict[str, str | int] = {"terms": terms.to_json(), "sites": 2, "out": str(out)}
        run_to_its_end(FlowerRun("deployment", SUPERLINK, config), deployment.home)
        apps = list(folder.glob("flwr-[ab]/apps/*"))
        logs = "".join(deployment.log_of(site).read_text() for site in "ab")
    assert_same_as_simulated(study, terms, out)
    assert not apps, "a node unpacked the code that Flower delivered"
    assert "Traceback" not in logs
    network, personal = model_of(terms.plan).network, study.simulated().trained.personal
    for site in "ab":
        (own,) = folder.glob(f"state-{site}/run-*/studies/*/models/round-{ROUNDS:04d}.safetensors")
        assert torch.equal(decode_parameters(network, own).theta, personal[site].theta), site
    assert not read_run(out).record.refusals


def fedmap_flower(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [command_path("fedmap-flower"), *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def simulate(study: SmallStudy, out: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    options = ["--rounds", str(ROUNDS), "--seed", str(SEED), "--out", str(out)]
    return fedmap_flower("simulate", str(study.plan), str(study.cohort), *options, **variables)


@pytest.mark.long
def test_flowers_simulation_gives_the_simulators_models_bit_for_bit(
    study: SmallStudy, terms: StudyTerms, tmp_path: Path
) -> None:
    done = simulate(study, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert_same_as_simulated(study, terms, tmp_path / "out")


@pytest.mark.long
def test_a_simulation_in_which_every_site_fails_ends_with_an_error(study: SmallStudy, tmp_path: Path) -> None:
    for site in study.sites:
        header, _, rows = site.data.read_text().partition("\n")
        site.data.write_text(header.replace("b", "q", 1) + "\n" + rows)
    done = simulate(study, tmp_path / "out")
    assert done.returncode == 1
    assert "so there is no result" in done.stderr
    assert not (tmp_path / "out" / "run.json").exists()


@pytest.mark.long
def test_flowers_simulation_runs_on_a_ray_cluster_that_is_there(
    study: SmallStudy, terms: StudyTerms, tmp_path: Path
) -> None:
    ray = [command_path("ray")]
    session = Path(tempfile.mkdtemp(prefix="ray-"))  # short: Ray puts sockets into it
    start = [
        *ray,
        "start",
        "--temp-dir",
        str(session),
        "--head",
        "--port",
        "0",
        "--num-cpus",
        "2",
        "--include-dashboard",
        "false",
    ]
    begun = subprocess.run(start, env=environment(), capture_output=True, text=True, check=False)
    assert begun.returncode == 0, begun.stderr
    try:
        done = simulate(study, tmp_path / "out", RAY_ADDRESS="auto")
        nodes = subprocess.run(
            [*ray, "status"], env=environment(), capture_output=True, text=True, check=False
        )
    finally:
        subprocess.run([*ray, "stop"], env=environment(), capture_output=True, check=False)
        drivers = list(session.glob("session_2*/logs/python-core-driver-*"))
        shutil.rmtree(session)
    assert done.returncode == 0, done.stderr
    assert nodes.returncode == 0, "the cluster did not outlive the run"
    assert drivers, "the run did not connect to the cluster"
    assert_same_as_simulated(study, terms, tmp_path / "out")


@pytest.mark.long
def test_a_node_whose_key_is_not_registered_is_not_let_in(
    study: SmallStudy, terms: StudyTerms, tmp_path: Path
) -> None:
    with LocalDeployment(tmp_path / "deployment") as deployment:
        policy = tmp_path / "policy.toml"
        policy.write_text(POLICY)
        stranger = tmp_path / "stranger"
        subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", stranger], check=True)
        options = [
            "--superlink",
            deployment.address,
            "--root-certificates",
            str(deployment.folder / "ca.pem"),
        ]
        options += ["--key", str(stranger), "--site", "a", "--data", str(study.sites[0].data)]
        options += ["--policy", str(policy), "--state", str(tmp_path / "s"), "--terms", terms.digest]
        done = fedmap_flower("node", *options)
    assert done.returncode == 69
    assert "ended by itself" in done.stderr
