"""`fedmap-lab demo`: a federation of real processes on this machine, from invitation to results.

One aggregator and a site agent for every T1 centre of a synthetic cohort, each a process of its own with its
own folder, key and certificate, talking over mutual TLS on loopback. What they do is what hospitals do; only
the patients are invented. Results and pictures stay; keys, state and processes go.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from common.data.cohort_directory import read_cohort_directory
from common.errors import StateError
from common.plan import load_plan
from lab.cohorts import make_cohort
from lab.local_federation import LocalFederation, LocalSite

SCALE, COHORT_SEED, STUDY_SEED = 0.25, 7, 7
Say = Callable[[str], None]


class Record(BaseModel):
    """A part of what `status --json` prints; fields that the demo does not show are left out."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class RoundSeen(Record):
    round: int
    answered: int
    loss: float | None
    validation_loss: float | None
    penalty: float
    personal_metric: float | None
    global_metric: float | None


class ScoreSeen(Record):
    site: str
    region: str
    model: str
    metric: str
    value: float | None
    note: str


class StudySeen(Record):
    study: str
    title: str
    phase: str
    metric: str
    history: tuple[RoundSeen, ...]
    scores: tuple[ScoreSeen, ...]

    def value(self, site: str, model: str) -> float | None:
        """The plan's metric of one model at one site; None where it was withheld or skipped."""
        for score in self.scores:
            if (score.site, score.model, score.metric) == (site, model, self.metric):
                return score.value
        return None

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(sorted({score.site for score in self.scores}))


class StatusSeen(Record):
    studies: tuple[StudySeen, ...]


@dataclass(frozen=True)
class Demo:
    """What is left when the processes are gone."""

    study: StudySeen
    processes: int
    results: Path


def run_demo(
    plan: Path, out: Path, rounds: int, say: Say, watch: Callable[[LocalFederation, str], None]
) -> Demo:
    """The whole way. `watch` shows the study while it runs and comes back when it has ended."""
    name = load_plan(plan).study.name
    cohort = out / "cohort"
    say("inventing patients at synthetic blood-donor centres")
    make_cohort("interval", cohort, SCALE, COHORT_SEED)
    folder = out / "federation"
    shutil.rmtree(folder, ignore_errors=True)
    sites = [
        LocalSite(entry.site, entry.region, entry.path)
        for entry in read_cohort_directory(cohort)
        if entry.tier == 1
    ]
    with LocalFederation(folder) as federation:
        say("starting the aggregator: own certificate authority, one port, mutual TLS")
        federation.initialise()
        federation.serve()
        for site in sites:
            say(f"inviting and enrolling {site.name}: its key is made there and stays there")
            federation.join(site)
        digest = federation.create_study(plan, rounds, STUDY_SEED)
        for site in sites:
            say(f"{site.name} approves the study's terms {digest[:12]}…")
            federation.site(site.name, "approve", digest, "--approver", "demo")
            federation.run_site(site.name)
        federation.aggregator("study", "start", name)
        watch(federation, name)
        (study,) = StatusSeen.model_validate_json(federation.aggregator("status", name, "--json")).studies
        if study.phase != "complete":
            raise StateError(
                f"the study ended in phase {study.phase}",
                hint=f"the logs are in {federation.log_of('aggregator').parent}: {federation.tail()}",
            )
        results = out / "results"
        shutil.rmtree(results, ignore_errors=True)
        federation.aggregator("study", "results", name, "--out", str(results.resolve()))
        logs = out / "logs"
        shutil.rmtree(logs, ignore_errors=True)
        federation.stop_all()
        shutil.move(federation.log_of("aggregator").parent, logs)
    shutil.rmtree(folder)
    return Demo(study, 1 + len(sites), results)
