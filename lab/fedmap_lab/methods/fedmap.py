"""FedMAP: local MAP estimation under a learned convex prior; the paper's algorithms for T1, T2 and T3.

F. Zhang, D. Kreuter, C. Esteve-Yagüe, S. Dittmer, and others, M. Roberts. FedMAP: Personalised Federated
Learning for Real Large-Scale Healthcare Systems. Where this departs from it: docs/mathematics.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from fedmap.algorithm.fit.round import LocalRound, OwnModel
from fedmap.algorithm.fit.values import FailedFit
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.settings import FedmapSettings
from fedmap.study.centre_step import CentreStep
from fedmap.study.engine import RoundSite, fit_round
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
