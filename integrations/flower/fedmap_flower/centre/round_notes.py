"""What is told of a closed round: to Flower's history, and in the run's folder."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import MetricRecord

from fedmap.algorithm.prior.aggregation import PriorStep
from fedmap.contract.v1 import federation_pb2 as pb
from fedmap.study.answer_names import GLOBAL, PERSONAL


@dataclass(frozen=True)
class RoundNote:
    """A round as the services' status tells it."""

    round: int
    weights: Mapping[str, float]  # ω̄ by site
    absent: tuple[str, ...]  # those of them that count with an earlier update
    members: int
    penalty: float
    loss: float | None  # mean over sites, per row
    validation_loss: float | None
    personal_metric: float | None  # median over sites, on validation rows
    global_metric: float | None
    closed_unix_ms: int

    def metrics(self) -> MetricRecord:
        """For Flower's history: what is known as numbers."""
        known = {
            "answered": len(self.weights) - len(self.absent),
            "penalty": self.penalty,
            "largest-weight": max(self.weights.values()),
            "loss": self.loss,
            "validation-loss": self.validation_loss,
            "personal-metric": self.personal_metric,
            "global-metric": self.global_metric,
        }
        return MetricRecord({name: value for name, value in known.items() if value is not None})


def note_of(
    number: int,
    step: PriorStep,
    absent: tuple[str, ...],
    fits: Sequence[pb.FitAnswer],
    members: int,
    closed_unix_ms: int,
) -> RoundNote:
    """From the answers that were accepted."""
    return RoundNote(
        round=number,
        weights=dict(step.weights),
        absent=absent,
        members=members,
        penalty=step.penalty,
        loss=_mean([fit.loss for fit in fits if fit.HasField("loss")]),
        validation_loss=_mean([fit.validation_loss for fit in fits if fit.HasField("validation_loss")]),
        personal_metric=_median(fits, PERSONAL),
        global_metric=_median(fits, GLOBAL),
        closed_unix_ms=closed_unix_ms,
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _median(fits: Iterable[pb.FitAnswer], model: str) -> float | None:
    values = [
        score.value
        for fit in fits
        for score in fit.validation_scores
        if score.model == model and score.HasField("value")
    ]
    return statistics.median(values) if values else None
