"""FedMAP as published, and with one thing changed: what each part of it is worth.

`fedmap-paper` sets all that the paper fixes. Each other one sets one setting and leaves the plan's others
alone. Where the plan says the same already, it is the plan's own FedMAP, and is not run a second time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedmap.algorithm.settings import FedmapSettings, StartRule, WeightingRule
from fedmap.study.plan import StudyPlan
from fedmap_lab.methods.fedmap import FedMap

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
