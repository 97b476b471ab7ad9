"""FedMAP as a Flower strategy: the centre's half of a study, by the same functions as in the services.

    strategy = FedMAP(terms, scratch)
    first = strategy.open(grid, sites)            pooled statistics, the first model of a site drawn at random
    strategy.start(grid, first, terms.rounds)     Flower's own loop: configure_train, aggregate_train
    strategy.close(grid)                          decision rule, last evaluation

An `ArrayRecord` here is one prior with its scaler, as a safetensors file. A round below the plan's quorum is
an error that ends the run; nothing falls back to the last prior in silence. Seeds are the terms' own, so the
models are those of the simulator, bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from logging import INFO, WARNING
from pathlib import Path
from statistics import median_low

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.prior.values import draw_initial_site
from fedmap.contract.v1.values import FitAnswer, RuleAnswer, StatisticsAnswer
from fedmap.errors import TrainingError
from fedmap.scoring.decision_rules import DecisionRule, RuleTerms
from fedmap.shift.reference import Reference
from fedmap.shift.told.terms import ReferenceTerms
from fedmap.study.answers import content_as, terms_of
from fedmap.study.centre_step import CentreStep
from fedmap.study.record import PriorMade, RefusalRecord, RoundRecord, RoundSummary, summary_of
from fedmap.study.tensors.parameter_files import (
    PriorFile,
    decode_parameters,
    decode_prior,
    decode_statistics,
    decode_theta,
    encode_prior,
)
from fedmap.study.terms import StudyTerms
from fedmap_aggregator.gate.headers import GateLimits
from fedmap_flower.centre.exchange import Accepted, Exchange, Member, Question, Step
from fedmap_flower.centre.grid_nodes import wait_for_nodes
from fedmap_flower.records import tensor_bytes, tensor_record

_HISTORY = (
    "answered",
    "penalty",
    "largest-weight",
    "loss",
    "validation-loss",
    "personal-metric",
    "global-metric",
)


class FedMAP(Strategy):
    """One study. Use an object once."""

    def __init__(self, terms: StudyTerms, scratch: Path, limits: GateLimits | None = None) -> None:
        self.terms = terms
        self.members: dict[str, Member] = {}  # who takes part, by site
        self.statistics: Mapping[str, Accepted] = {}
        self.evaluations: Mapping[str, Accepted] = {}
        self.refused: list[RefusalRecord] = []
        self.rounds: list[RoundRecord] = []
        self.rule = DecisionRule()
        self.reference: Reference | None = None
        self.input_names: tuple[str, ...] = ()
        self.prior = b""  # the newest, with its scaler
        self._centre = CentreStep.of(terms)
        self._model = self._centre.model
        self._exchange = Exchange(terms, self._model, limits or GateLimits(), scratch)
        self._cohort_norm: float | None = None
        self._last: dict[str, Accepted] = {}  # in consensus rounds, what each site sent last

    @property
    def deadline(self) -> float:
        """Seconds that a node has for one task."""
        return self.terms.plan.rounds.deadline_minutes * 60

    def open(self, grid: Grid, sites: int) -> ArrayRecord:
        """Pooled statistics and the first prior, from the first `sites` nodes or more that are there."""
        nodes = wait_for_nodes(grid, sites, self.deadline)
        found = self._ask(grid, Question("statistics"), dict.fromkeys(nodes))
        self._require(found.accepted, "statistics")
        told = {site: content_as(StatisticsAnswer, one.answer) for site, one in found.accepted.items()}
        pooled = self._centre.pool(
            {site: answer.layout_digest for site, answer in told.items()},
            lambda site: decode_statistics(
                _file(found.accepted[site]), told[site].rows, self._model.network.inputs
            ),
        )
        for site, reason in sorted(pooled.excluded.items()):
            self._refuse((RefusalRecord(site, "statistics", "data", reason),))
        self.statistics = {s: one for s, one in found.accepted.items() if s not in pooled.excluded}
        self._require(self.statistics, "statistics")
        self.members = {site: one.member for site, one in self.statistics.items()}
        self.input_names = told[next(iter(self.statistics))].input_names
        network, settings = self._model.network, self.terms.plan.prior
        first = self._centre.first(decode_theta(network, self._first_model(grid)), pooled.scaler)
        self.prior = encode_prior(network, settings, first)
        return tensor_record(self.prior)

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,  # noqa: ARG002 - the study plan is the configuration
        grid: Grid,  # noqa: ARG002 - who takes part was settled by `open`
    ) -> Iterable[Message]:
        """The prior of the round, for every site that takes part."""
        self.prior = tensor_bytes(arrays)
        return self._exchange.messages(self._round(server_round), self._nodes())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """The next prior from the updates that pass the gate; `TrainingError` below the plan's quorum."""
        plan, network = self.terms.plan, self._model.network
        found = self._exchange.judge(self._round(server_round), self._nodes(), replies, self._cohort_norm)
        self._refuse(found.refused)
        weighted = {site: one for site, one in found.accepted.items() if not one.abstained}
        self._require(weighted, f"round {server_round}", found.refused)
        before = decode_prior(network, plan.prior, self.prior)
        counted = dict(self._centre.counted(server_round, weighted, self._last))
        step = self._centre.next(
            server_round,
            before.prior,
            {site: _log_omega(one) for site, one in counted.items()},
            lambda site: self._update(counted[site]),
        )
        self._cohort_norm = median_low([one.norm for one in weighted.values() if one.norm is not None])
        self._keep(counted if self._centre.carries_over(server_round) else {}, weighted)
        self.prior = encode_prior(network, plan.prior, PriorFile(step.prior, before.scaler))
        fits = [content_as(FitAnswer, one.answer) for one in found.accepted.values()]
        absent = tuple(sorted(counted.keys() - weighted.keys()))
        made = PriorMade(step.weights, step.penalty)
        summary = summary_of(server_round, len(self.members), len(weighted), made, fits)
        now = time.time_ns() // 1_000_000
        self.rounds.append(RoundRecord(step.weights, absent, summary, now))
        return tensor_record(self.prior), _metrics(summary)

    def configure_evaluate(
        self,
        server_round: int,  # noqa: ARG002
        arrays: ArrayRecord,  # noqa: ARG002
        config: ConfigRecord,  # noqa: ARG002
        grid: Grid,  # noqa: ARG002
    ) -> Iterable[Message]:
        """Nothing: fits bring validation scores along, and test rows are touched once, by `close`."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:  # noqa: ARG002
        return None

    def close(self, grid: Grid) -> None:
        """The rule of the final model, then the scores of all models on the sites' test rows."""
        plan = self.terms.plan
        ruled = self._ask(grid, Question("rule", prior=self.prior), self._nodes())
        self._require(ruled.accepted, "the decision rule", ruled.refused, least=1)
        terms: dict[str, RuleTerms] = {}
        references: dict[str, ReferenceTerms] = {}
        for site, one in ruled.accepted.items():
            told = content_as(RuleAnswer, one.answer)
            terms[site], reference = terms_of(plan, told, one.tensors)
            if reference is not None:
                references[site] = reference
        made = self._centre.rule(terms, references, self.input_names)
        self.rule, self.reference = made.rule, made.reference
        scored = self._ask(grid, Question("evaluate", prior=self.prior, rule=self.rule), self._nodes())
        self._require(scored.accepted, "the last evaluation", scored.refused, least=1)
        self.evaluations = scored.accepted

    def summary(self) -> None:
        """Flower's log of what is about to run."""
        plan = self.terms.plan
        log(INFO, "\t├──> study %s, terms %s", self.terms.study, self.terms.digest)
        log(INFO, "\t├──> %s, %s", plan.model.name, plan.task.kind)
        log(INFO, "\t└──> %d site(s), quorum %d", len(self.members), plan.rounds.quorum)

    def _first_model(self, grid: Grid) -> Path:
        """Of a site drawn at random; of another one where that fails, until all have been asked."""
        left = dict(self.members)
        while left:
            drawn = draw_initial_site(tuple(left), self.terms.seed)
            member = left.pop(drawn)
            found = self._ask(grid, Question("initialise"), {member.node: member})
            if found.accepted:
                return _file(found.accepted[drawn])
        raise TrainingError(
            "no site gave a first model", hint="read the refusals above and the logs of the SuperNodes"
        )

    def _round(self, number: int) -> Question:
        return Question("fit", number, self.prior)

    def _nodes(self) -> dict[int, Member | None]:
        return {member.node: member for member in self.members.values()}

    def _ask(self, grid: Grid, question: Question, nodes: Mapping[int, Member | None]) -> Step:
        messages = self._exchange.messages(question, nodes)
        found = self._exchange.judge(question, nodes, grid.send_and_receive(messages, timeout=self.deadline))
        self._refuse(found.refused)
        return found

    def _refuse(self, refused: Iterable[RefusalRecord]) -> None:
        for one in refused:
            self.refused.append(one)
            log(WARNING, "no usable answer of %s to %s: %s (%s)", one.site, one.task, one.reason, one.code)

    def _require(
        self,
        accepted: Mapping[str, Accepted],
        what: str,
        refused: Iterable[RefusalRecord] = (),
        least: int | None = None,
    ) -> None:
        needed = self.terms.plan.rounds.quorum if least is None else least
        if len(accepted) >= needed:
            return
        reasons = "; ".join(f"{one.site}: {one.reason}" for one in list(refused or self.refused)[:3])
        why = reasons or "no node answered"
        raise TrainingError(
            f"{what}: {len(accepted)} usable answer(s), {needed} are needed ({why})",
            hint="mend the nodes named above and run the study again, or lower rounds.quorum in the plan",
        )

    def _keep(self, last: dict[str, Accepted], arrived: dict[str, Accepted]) -> None:
        """Updates that may count once more stay; the files of all others go."""
        files = {_file(one) for one in (*self._last.values(), *arrived.values())}
        for file in files.difference(map(_file, last.values())):
            file.unlink()
        self._last = last

    def _update(self, one: Accepted) -> SiteParameters:
        return decode_parameters(self._model.network, _file(one), f"the update of {one.member.site}")


def _file(one: Accepted) -> Path:
    assert one.tensors is not None  # the gate lets no such answer pass without
    return one.tensors


def _log_omega(one: Accepted) -> float:
    log_omega = content_as(FitAnswer, one.answer).log_omega
    assert log_omega is not None  # the gate lets no weighted fit pass without
    return log_omega


def _metrics(summary: RoundSummary) -> MetricRecord:
    """For Flower's history: what is known as numbers."""
    told = {name.replace("_", "-"): value for name, value in vars(summary).items()}
    return MetricRecord({name: told[name] for name in _HISTORY if told[name] is not None})
