"""What the services' commands print with --json, as far as the lab looks at it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


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
