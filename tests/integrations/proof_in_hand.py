"""What the proof (tests/proof) cannot ask of a command: the only part of it that imports the project.

    python -m tests.integrations.proof_in_hand WHAT PLAN COHORT OUT ROUNDS SEED SITE ROUND

WHAT is lab-loop or lab-vectorised (a site misses a round of a simulation; OUT is as `fedmap-lab simulate`
writes it) or flower (a whole study by Flower's apps without a network; OUT/run is as `fedmap-flower` writes
it, and OUT/priors has the prior of each task). SITE may be empty: nobody is missing.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedmap.algorithm.fit.rule import LocalRule
from fedmap.algorithm.fit.values import FailedFit, LocalFit, Model, SiteTask
from fedmap.algorithm.prior.values import Prior
from fedmap.algorithm.settings import FedmapSettings
from fedmap.study.engine import Engine
from fedmap.study.plan.reading import load_plan
from fedmap_flower.centre.server import run_study
from fedmap_flower.records import read_order
from fedmap_lab.federation.engines import EngineName, make_engine
from fedmap_lab.federation.sites import load_federation
from fedmap_lab.local.federation import LocalSite
from fedmap_lab.methods.fedmap import FedMap
from fedmap_lab.simulation.results import write_study
from fedmap_lab.simulation.simulate import simulate
from tests.integrations.conftest import Spoil, grid_in_hand, in_flower, nodes_of, terms_of
from tests.services.studies import SEED, SmallStudy


class WithAbsence:
    """An engine whose site of that number gives no fit in one round."""

    def __init__(self, engine: Engine, site: int, missed: int) -> None:
        self._engine, self._site, self._missed, self._round = engine, site, missed, 0

    def fit(
        self,
        model: Model,
        settings: FedmapSettings,
        prior: Prior,
        tasks: Sequence[SiteTask],
        penalised: bool = True,
        rule: LocalRule | None = None,
    ) -> list[LocalFit | FailedFit]:
        self._round += 1
        fits = self._engine.fit(model, settings, prior, tasks, penalised, rule)
        if self._round == self._missed:
            fits[self._site] = FailedFit("absent")
        return fits


def run_lab(engine: str, study: SmallStudy, out: Path, site: str, missed: int) -> None:
    names = sorted(one.name for one in study.sites)
    federation = load_federation(load_plan(study.plan), study.cohort)
    absent = WithAbsence(make_engine(cast("EngineName", engine)), names.index(site), missed)
    done = simulate(federation, FedMap(), absent, study.rounds, SEED)
    write_study(done, out, "fedmap", engine, study.rounds, SEED)


def run_flower(study: SmallStudy, out: Path, site: str, missed: int) -> None:
    in_flower()
    terms, priors = terms_of(study), out / "priors"
    priors.mkdir(parents=True)
    nodes = nodes_of(study, terms, out)
    away = (site, f"round-{missed}")

    def watch(name: str) -> Spoil:
        def noted(order: Message, reply: Message) -> Message | None:
            asked = read_order(order.content)
            if asked.prior:
                (priors / f"{asked.task.id}.safetensors").write_bytes(asked.prior)
            return None if (name, asked.task.id) == away else reply

        return noted

    def attended(name: str, app: ClientApp) -> ClientApp:
        def hand_over(message: Message, context: Context) -> Message:
            missed = (name, read_order(message.content).task.id) == away
            return message if missed else app(message=message, context=context)  # what is missed is not kept

        return cast("ClientApp", hand_over)

    for node in nodes.values():
        name = str(node.context.node_config["site"])
        node.spoil, node.app = watch(name), attended(name, node.app)
    run_study(
        grid_in_hand(nodes),
        {"terms": terms.to_json(), "sites": len(nodes), "out": str((out / "run").absolute())},
    )


def main(what: str, plan: str, cohort: str, out: str, rounds: str, seed: str, site: str, missed: str) -> None:
    if int(seed) != SEED:
        raise SystemExit(f"the tests' own studies have the seed {SEED}")
    torch.set_num_threads(1)
    with (Path(cohort) / "sites.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["tier"] == "1"]
    sites = tuple(LocalSite(row["site"], row["region"], Path(cohort) / f"{row['site']}.csv") for row in rows)
    study = SmallStudy(Path(plan), Path(cohort), sites, int(rounds))
    if what == "flower":
        run_flower(study, Path(out), site, int(missed))
    else:
        run_lab(what.removeprefix("lab-"), study, Path(out), site, int(missed))


if __name__ == "__main__":
    main(*sys.argv[1:])
