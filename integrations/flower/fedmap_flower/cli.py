"""`fedmap-flower`: a study on Flower, simulated here or run by SuperNodes.

Exit codes: 0 the study is complete and its folder written; 1 a FedMAP error, with its hint; 2 wrong usage
(Typer's own); 130 interrupted.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from fedmap.data.cohort_directory import SiteEntry, read_cohort_directory
from fedmap.errors import DataError
from fedmap.process.command_line import Json, command_group, say, version_option
from fedmap.process.ending import run_program
from fedmap.study.plan.reading import load_plan
from fedmap.study.terms import StudyTerms
from fedmap_flower.processes.commands import LOCAL, FlowerRun, run_to_its_end, simulation_superlink

app = command_group("FedMAP on Flower: simulate a study, or run one over SuperNodes.")
app.callback()(version_option)
Plan = Annotated[Path, typer.Argument(help="The study plan (TOML).")]
Rounds = Annotated[int | None, typer.Option(min=1, help="Rounds. Default: the plan's.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything that is random.")]


@app.command("terms")
def terms_command(plan: Plan, rounds: Rounds = None, seed: Seed = 0, as_json: Json = False) -> None:
    """The digest of a study's terms: what a SuperNode is started for."""
    terms = StudyTerms.of_plan(load_plan(plan), rounds, seed)
    told = {"study": terms.study, "rounds": terms.rounds, "seed": terms.seed, "terms_digest": terms.digest}
    sys.stdout.write(json.dumps(told, indent=2) + "\n" if as_json else f"{terms.digest}\n")


@app.command("simulate")
def simulate_command(
    plan: Plan,
    cohort: Annotated[Path, typer.Argument(help="Cohort directory: sites.csv and a file for each site.")],
    out: Annotated[Path, typer.Option(help="Folder for the result: new, or empty.")],
    rounds: Rounds = None,
    seed: Seed = 0,
    cpus: Annotated[int, typer.Option(min=1, help="Cores for each simulated node.")] = 1,
    as_json: Json = False,
) -> None:
    """Flower's simulation on Ray: on this machine, or on the cluster that RAY_ADDRESS names."""
    terms = StudyTerms.of_plan(load_plan(plan), rounds, seed)
    sites = training_sites(cohort)
    config = _config(terms, len(sites), out) | {"cohort": str(cohort.resolve())}
    federation = f"num-supernodes={len(sites)} client-resources-num-cpus={cpus}"
    with simulation_superlink() as home:
        run_to_its_end(FlowerRun("simulation", LOCAL, config, federation), home)
    _tell(terms, out, as_json)


@app.command("run")
def run_command(
    plan: Plan,
    superlink: Annotated[str, typer.Option(help="The SuperLink's name in Flower's config.toml.")],
    sites: Annotated[int, typer.Option(min=1, help="How many SuperNodes to wait for.")],
    out: Annotated[Path, typer.Option(help="Folder for the result, on the SuperLink's machine.")],
    rounds: Rounds = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """A study over the SuperNodes of a SuperLink, until it is complete or has failed."""
    terms = StudyTerms.of_plan(load_plan(plan), rounds, seed)
    run_to_its_end(FlowerRun("deployment", superlink, _config(terms, sites, out)))
    _tell(terms, out, as_json)


@app.command("node")
def node_command(
    superlink: Annotated[str, typer.Option(help="HOST:PORT of the SuperLink.")],
    root_certificates: Annotated[Path, typer.Option(help="What the SuperLink's certificate is trusted by.")],
    key: Annotated[Path, typer.Option(help="This node's private key; its public half is registered.")],
    site: Annotated[str, typer.Option(help="The site's name in the study.")],
    data: Annotated[Path, typer.Option(help="The site's patient file.")],
    policy: Annotated[Path, typer.Option(help="The site's own policy (TOML).")],
    state: Annotated[Path, typer.Option(help="Folder for the site's own models.")],
    terms: Annotated[str, typer.Option(help="Digest of the terms that the site has agreed to.")],
    region: Annotated[str, typer.Option(help="The site's region, for figures by region.")] = "",
) -> None:
    """A hospital's node: a SuperNode that runs the installed FedMAP and nothing that is sent to it."""
    from fedmap.process import log
    from fedmap_flower.processes.hospital import HospitalNode, run_node

    log.configure("info", service="flower-node")
    run_node(HospitalNode(superlink, root_certificates, key, site, region, data, policy, state, terms))


@app.command("deploy")
def deploy_command(
    plan: Plan,
    cohort: Annotated[Path, typer.Argument(help="Cohort directory: sites.csv and a file for each site.")],
    out: Annotated[Path, typer.Option(help="Folder for the result: new, or empty.")],
    rounds: Rounds = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """A whole deployment on this machine: SuperLink and a SuperNode for each T1 site, TLS and keys."""
    from fedmap_flower.processes.deployment import deploy

    terms = StudyTerms.of_plan(load_plan(plan), rounds, seed)
    sites = training_sites(cohort)
    config = _config(terms, len(sites), out)
    with tempfile.TemporaryDirectory(prefix="fedmap-deployment-") as folder:
        deploy(Path(folder), terms, sites, config)
    _tell(terms, out, as_json)


def training_sites(cohort: Path) -> list[SiteEntry]:
    """The T1 sites of a cohort directory; `DataError` where there is none."""
    sites = [entry for entry in read_cohort_directory(cohort) if entry.tier == 1]
    if not sites:
        raise DataError(cohort.name, ("there is no T1 site",), hint="give sites tier 1 in sites.csv")
    return sites


def _config(terms: StudyTerms, sites: int, out: Path) -> dict[str, str | int]:
    return {"terms": terms.to_json(), "sites": sites, "out": str(out.absolute())}


def _tell(terms: StudyTerms, out: Path, as_json: bool) -> None:
    if as_json:
        told = {"study": terms.study, "terms_digest": terms.digest, "out": str(out.absolute())}
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
        return
    sys.stdout.write(
        f"{terms.study} is complete: {out}\nRelease it: fedmap-aggregator bundle import-flower {out}\n"
    )


def main() -> None:
    run_program(app, say)
