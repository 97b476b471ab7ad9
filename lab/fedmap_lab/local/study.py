"""One study from invitation to its last evaluation, at a federation of real processes on this machine.

The records are what the services' commands print with --json, as far as the lab looks at it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from fedmap.errors import StateError
from fedmap.study.plan.reading import load_plan
from fedmap_lab.local.federation import LocalFederation, LocalSite


class Record(BaseModel):
    """A part of what a command prints; fields that the lab does not show are left out."""

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


Say = Callable[[str], None]
Watch = Callable[[LocalFederation, str], None]
"""Shows the study of that name while it runs, and comes back when it has ended."""


def wait_for_end(federation: LocalFederation, study: str) -> None:
    """A `Watch` that shows nothing."""
    federation.aggregator("status", study, "--watch")


def run_study(
    federation: LocalFederation,
    plan: Path,
    sites: Sequence[LocalSite],
    rounds: int,
    seed: int,
    say: Say,
    watch: Watch = wait_for_end,
) -> StudySeen:
    """Start the aggregator, enrol the sites, train. The processes still run afterwards."""
    name = load_plan(plan).study.name
    say("starting the aggregator: own certificate authority, one port, mutual TLS")
    federation.initialise()
    federation.serve()
    for site in sites:
        say(f"inviting and enrolling {site.name}: its key is made there and stays there")
        federation.join(site)
    digest = federation.create_study(plan, rounds, seed)
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
    return study
