"""FedMAP's federated loop: fit the sites, aggregate, repeat.

This is the service without the network: `fit_round` is the sites' half, `CentreStep` the centre's. The loop
of the other methods is in `scheme`; what both need of a round (who answered, the quorum, the record) is here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedmap.algorithm.fit.round import LocalRound, OwnModel
from fedmap.algorithm.fit.values import FailedFit, LocalFit
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.prior.values import Prior
from fedmap.algorithm.settings import FedmapSettings
from fedmap.errors import TrainingError
from fedmap.study.centre_step import CentreStep
from fedmap.study.engine import Engine, RoundSite, fit_round
from fedmap_lab.federation.sites import Federation
from fedmap_lab.methods.method import FailedSite, Progress, RoundRecord, Trained, Watch, sort_out


def run_rounds(
    federation: Federation,
    engine: Engine,
    settings: FedmapSettings,
    prior: Prior,
    rounds: int,
    seed: int,
    watch: Watch,
) -> Trained:
    """Rounds 1 … `rounds` from a given prior; a site without a model of its own starts at μ."""
    sites, model = federation.tier(1), federation.model
    centre = CentreStep(federation.plan, model, settings, rounds)
    own: dict[str, OwnModel] = {}  # only what a fit gave
    counted: Mapping[str, tuple[float, SiteParameters]] = {}  # what makes the next prior: log ω and update
    history: list[RoundRecord] = []
    for number in range(1, rounds + 1):
        this = LocalRound(settings, number, rounds)
        asked = [RoundSite(s.name, s.data.train, s.data.validation, own.get(s.name)) for s in sites]
        done = fit_round(engine, model, this, prior, seed, asked)
        fits = [one if isinstance(one, FailedFit) else one.fit for one in done.values()]
        answered, failed = sort_out(number, sites, fits)
        weighed = with_weight(federation, number, answered, failed)
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


def with_weight(
    federation: Federation,
    number: int,
    answered: Mapping[str, LocalFit],
    failed: tuple[FailedSite, ...],
) -> Mapping[str, LocalFit]:
    """The fits that count in the global model (not a survival site without events); at least a quorum."""
    weighed = {name: fit for name, fit in answered.items() if fit.log_omega is not None}
    quorum = federation.plan.rounds.quorum
    if len(weighed) < quorum:
        reasons = "; ".join(f"{failure.site}: {failure.reason}" for failure in failed[:3])
        raise TrainingError(
            f"round {number}: {len(weighed)} of {len(federation.tier(1))} sites gave an update with a "
            f"weight, the plan's quorum is {quorum} ({reasons or 'the others have no events'})",
            hint="lower training.learning_rate, check the feature ranges, or lower rounds.quorum",
        )
    return weighed


def round_record(
    number: int,
    answered: Mapping[str, LocalFit],
    weights: Mapping[str, float],
    failed: tuple[FailedSite, ...],
    penalties: tuple[float, float] = (0.0, 0.0),
) -> RoundRecord:
    """What a round looked like; `penalties` are R and the part of it that is f."""
    fits = list(answered.values())
    judged = [fit.validation_loss for fit in fits if fit.validation_loss is not None]
    return RoundRecord(
        round=number,
        loss=sum(fit.loss / fit.rows for fit in fits) / len(fits),
        penalty=penalties[0],
        convex_penalty=penalties[1],
        validation_loss=sum(judged) / len(judged) if judged else math.nan,
        largest_weight=max(weights.values()),
        failed=failed,
        weights=weights,
    )
