"""`StudyPlan`: the whole plan as one frozen value with a digest. How it is read from TOML is in `reading`."""

from __future__ import annotations

import hashlib
import json
from typing import Self

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from fedmap.algorithm.settings import AggregationSettings, FedmapSettings, PriorSettings, TrainingSettings
from fedmap.errors import PlanError
from fedmap.study.plan.contradictions import Draft, contradictions
from fedmap.study.plan.sections import (
    DataSection,
    Feature,
    LimitsSection,
    ModelSection,
    RoundsSection,
    ScalingSection,
    Section,
    SplitSection,
    StudySection,
    TaskSection,
)


class StudyPlan(Section):
    """Everything a study fixes beforehand. One that contradicts itself cannot be made."""

    study: StudySection
    task: TaskSection
    features: tuple[Feature, ...]
    model: ModelSection
    data: DataSection = DataSection()
    split: SplitSection = SplitSection()
    training: TrainingSettings = TrainingSettings()
    prior: PriorSettings = PriorSettings()
    aggregation: AggregationSettings = AggregationSettings()
    rounds: RoundsSection = RoundsSection()
    limits: LimitsSection = LimitsSection()
    scaling: ScalingSection = ScalingSection()

    @model_validator(mode="after")
    def _must_not_contradict_itself(self) -> Self:
        draft = Draft(
            task=self.task,
            data=self.data,
            split=self.split,
            model=self.model,
            features=tuple(enumerate(self.features)),
            all_features_read=True,
        )
        faults = contradictions(draft)
        if faults:
            raise PlanError(
                self.study.name,
                tuple(str(fault) for fault in faults),
                hint="Change one side of each contradiction.",
            )
        return self

    @model_serializer(mode="wrap")
    def _as_before_unless_used(self, dump: SerializerFunctionWrapHandler) -> dict[str, object]:
        """What older agents do not know is told only where it is used: they can read all other plans."""
        form: dict[str, object] = dump(self)
        training = form["training"]
        assert isinstance(training, dict)
        if training["consensus_share"] == 0:
            del training["consensus_share"]
        return form

    @property
    def settings(self) -> FedmapSettings:
        """What the algorithm reads."""
        return FedmapSettings(self.prior, self.training, self.aggregation)

    @property
    def digest(self) -> str:
        """SHA-256 over a canonical form: equal for plans that say the same, however they are laid out.

        Computed anew each time, so that a copy with other values never keeps an old digest.
        """
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()
