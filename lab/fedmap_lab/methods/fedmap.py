"""FedMAP: local MAP estimation under a learned convex prior; the paper's algorithms for T1, T2 and T3.

F. Zhang, D. Kreuter, C. Esteve-Yagüe, S. Dittmer, and others, M. Roberts. FedMAP: Personalised Federated
Learning for Real Large-Scale Healthcare Systems. Where this departs from it: docs/mathematics.md.

Ablations are FedMAP with one thing changed, to see what each part of it is worth; `fedmap-paper` sets all
that the paper fixes. Where the plan says the same already, it is the plan's own FedMAP, and not run again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from fedmap.algorithm.fit.round import LocalRound, OwnModel
from fedmap.algorithm.fit.values import FailedFit
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.settings import FedmapSettings, StartRule, WeightingRule
from fedmap.study.centre_step import CentreStep
from fedmap.study.engine import RoundSite, fit_round
from fedmap.study.plan.study_plan import StudyPlan
from fedmap_lab.methods.method import (
    Method,
    Progress,
    RoundRecord,
    Run,
    Trained,
    Watch,
    round_record,
    sort_out,
    with_weight,
)


@dataclass(frozen=True)
class FedMap(Method):
    """As the plan says. The ablations change one thing each in `settings`."""

    alpha: float | None = None  # None: the plan's

    penalised: ClassVar[bool] = True
    space: ClassVar[Mapping[str, tuple[float, ...]]] = {"alpha": (0.005, 0.05, 0.15, 0.5)}

    def settings(self, settings: FedmapSettings) -> FedmapSettings:
        if self.alpha is None:
            return settings
        return replace(settings, prior=replace(settings.prior, alpha=self.alpha))

    def hyperparameters(self, settings: FedmapSettings) -> dict[str, float]:
        return {"alpha": self.settings(settings).prior.alpha}

    def train(self, run: Run, watch: Watch) -> Trained:
        """The service without the network: `fit_round` is the sites' half, `CentreStep` the centre's."""
        settings = self.settings(run.federation.settings)
        prior = run.start(settings.prior)
        sites, model = run.federation.tier(1), run.federation.model
        centre = CentreStep(run.federation.plan, model, settings, run.rounds)
        own: dict[str, OwnModel] = {}  # only what a fit gave
        counted: Mapping[str, tuple[float, SiteParameters]] = {}  # log ω and update: the next prior
        history: list[RoundRecord] = []
        for number in range(1, run.rounds + 1):
            this = LocalRound(settings, number, run.rounds)
            asked = [RoundSite(s.name, s.data.train, s.data.validation, own.get(s.name)) for s in sites]
            done = fit_round(run.engine, model, this, prior, run.seed, asked)
            fits = [one if isinstance(one, FailedFit) else one.fit for one in done.values()]
            answered, failed = sort_out(number, sites, fits)
            weighed = with_weight(run.federation, number, answered, failed)
            own |= {name: one.own for name, one in done.items() if not isinstance(one, FailedFit)}
            sent = {
                name: (fit.log_omega, own[name].update)
                for name, fit in weighed.items()
                if fit.log_omega is not None
            }
            counted = centre.counted(number, sent, counted)
            updates = {name: update for name, (_, update) in counted.items()}
            log_omega = {name: weight for name, (weight, _) in counted.items()}
            step = centre.next(number, prior, log_omega, updates.__getitem__)
            prior = step.prior
            penalties = (step.penalty, step.convex_penalty)
            history.append(round_record(number, answered, step.weights, failed, penalties))
            watch(Progress(history[-1], prior, {name: one.parameters for name, one in own.items()}))
        personal = {name: one.parameters for name, one in own.items() if one.is_personal}
        return Trained(personal, prior, tuple(history), tuple(f for record in history for f in record.failed))


SKETCH_WIDTH = 128


@dataclass(frozen=True)
class Ablation(FedMap):
    """What is given is set; the rest is the plan's."""

    convex: bool | None = None
    weighting: WeightingRule | None = None
    start: StartRule | None = None
    psi_steps: int | None = None
    sketch: int | None = None
    consensus_share: float | None = None

    def refusal(self, plan: StudyPlan, settings: FedmapSettings) -> str | None:  # noqa: ARG002
        if self.settings(settings) == FedMap(self.alpha).settings(settings):
            return "the plan's own FedMAP has this setting: see fedmap"
        if not settings.prior.convex and (self.psi_steps is not None or self.sketch is not None):
            return "the plan's prior is quadratic only: there is no ψ to freeze or sketch"
        return None

    def settings(self, settings: FedmapSettings) -> FedmapSettings:
        settings = super().settings(settings)
        prior, training, aggregation = settings.prior, settings.training, settings.aggregation
        if self.convex is not None:
            prior = replace(prior, convex=self.convex)
        if self.sketch is not None:
            prior = replace(prior, sketch=self.sketch)
        if self.start is not None:
            training = replace(training, start=self.start)
        if self.consensus_share is not None:
            training = replace(training, consensus_share=self.consensus_share)
        if self.weighting is not None:
            aggregation = replace(aggregation, weighting=self.weighting)
        if self.psi_steps is not None:
            aggregation = replace(aggregation, psi_steps=self.psi_steps)
        return FedmapSettings(prior, training, aggregation)


ABLATIONS: dict[str, Ablation] = {
    "fedmap-paper": Ablation(convex=True, weighting="per_sample", start="local", consensus_share=0),
    "fedmap-quadratic": Ablation(convex=False),
    "fedmap-convex": Ablation(convex=True),
    "fedmap-per-sample": Ablation(weighting="per_sample"),
    "fedmap-literal": Ablation(weighting="literal"),
    "fedmap-reference": Ablation(weighting="reference"),
    "fedmap-sample-count": Ablation(weighting="sample_count"),
    "fedmap-start-local": Ablation(start="local"),
    "fedmap-start-global": Ablation(start="global"),
    "fedmap-no-consensus": Ablation(consensus_share=0),
    "fedmap-frozen": Ablation(psi_steps=0),
    "fedmap-sketch": Ablation(sketch=SKETCH_WIDTH),
}
