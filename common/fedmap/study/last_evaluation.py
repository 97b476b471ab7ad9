"""The answer to the last task: how the site's own, the global and a fine-tuned model do on test rows.

Test rows have touched nothing before. Fine-tuning is what a T2 site would do with the released prior: it
starts at μ and its result is thrown away after it is scored. Calibration and groups are the global model's.
Small cells are joined or left out here, where the rows are; the exit gate judges the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedmap.algorithm.fit.values import FailedFit, Model
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.seeding import derive_seed
from fedmap.contract.v1.values import EvaluationAnswer, RiskBin, Score, SubgroupScore
from fedmap.data.table.site_dataset import SiteDataset
from fedmap.metrics import SkippedMetric, metric_names
from fedmap.scoring.decision_rules import DecisionRule
from fedmap.scoring.disclosure import events, is_small_cell
from fedmap.scoring.evaluation import Scoring, local_rule
from fedmap.scoring.evaluation_terms import (
    Measured,
    Subgroup,
    calibration_terms,
    measure_with_errors,
    subgroup_scores,
)
from fedmap.study.answer_names import FINE_TUNED, GLOBAL, PERSONAL
from fedmap.study.answers import told_score
from fedmap.study.personalisation import fine_tune
from fedmap.study.tensors.parameter_files import PriorFile
from fedmap.study.terms import StudyTerms

_OWN, _TUNING, _GROUPS = 0.1, 0.3, 0.8  # of the whole task, when its parts begin


@dataclass(frozen=True)
class Evaluation:
    """The answer, and what was left out of it for small cells."""

    content: EvaluationAnswer
    notes: tuple[str, ...]


class FinalEvaluation:
    """One site's rows, scaled, and the final prior."""

    def __init__(
        self,
        terms: StudyTerms,
        model: Model,
        data: SiteDataset,
        file: PriorFile,
        floor: int,
        on_progress: Callable[[float], None],
    ) -> None:
        self._terms = terms
        self._model = model
        self._data = data
        self._file = file
        self._floor = floor
        self._on_progress = on_progress

    def answer(self, own: SiteParameters | None, rule: DecisionRule) -> Evaluation:
        """`own` is the site's model, `rule` the global one's."""
        self._on_progress(_OWN)
        shared = SiteParameters(self._file.prior.mu, self._file.prior.buffers)
        scores = self._scores(PERSONAL, own, None, "no fit gave this site a model of its own")
        scores += self._scores(GLOBAL, shared, rule, "")
        self._on_progress(_TUNING)
        scores += self._scores(FINE_TUNED, self._fine_tuned(), None, "fine-tuning gave no usable model")
        self._on_progress(_GROUPS)
        scoring = self._scoring(shared, rule)
        bins = calibration_terms(scoring, self._floor)
        groups = subgroup_scores(scoring, self._data.layout.names, self._floor)
        content = EvaluationAnswer(
            scores=tuple(scores),
            test_rows=len(self._data.test),
            test_events=self._events(),
            calibration=tuple(
                RiskBin(one.bin, one.rows, one.predicted, one.observed, one.effective_rows) for one in bins
            ),
            subgroups=tuple(map(_told_group, groups)),
        )
        left_out = sum(group.rows is None for group in groups)
        note = f"{left_out} groups of test rows with a small cell, or next to one: left out"
        return Evaluation(content, (note,) * bool(left_out))

    def _scores(
        self, name: str, model: SiteParameters | None, rule: DecisionRule | None, otherwise: str
    ) -> list[Score]:
        """All metrics of one model; a site's own models have a rule that the site makes."""
        plan, data = self._terms.plan, self._data
        if model is None:
            skipped = [Measured(SkippedMetric(metric, otherwise)) for metric in metric_names(plan.task.kind)]
            return _told(name, skipped)
        own = rule or local_rule(plan, self._model, model, data.train, data.validation)
        return _told(name, measure_with_errors(self._scoring(model, own)))

    def _scoring(self, model: SiteParameters, rule: DecisionRule) -> Scoring:
        data = self._data
        follow_up = data.train if len(data.train) else data.test
        seed = derive_seed(self._terms.seed, "resample", data.site)
        return Scoring(self._terms.plan, self._model, model, rule, data.test, follow_up, seed)

    def _fine_tuned(self) -> SiteParameters | None:
        terms, prior = self._terms, self._file.prior

        def on_epoch(done: int, most: int) -> None:
            self._on_progress(_TUNING + (_GROUPS - _TUNING) * done / most)

        fit = fine_tune(terms.plan, self._model, prior, self._data, terms.seed, on_epoch)
        return None if isinstance(fit, FailedFit) else SiteParameters(fit.theta, fit.buffers)

    def _events(self) -> int | None:
        """Events or positive rows; None where there is no such count, or the others are few."""
        test = self._data.test
        found = events(self._terms.plan.task.kind, test)
        return None if found is None or is_small_cell(len(test) - found, self._floor) else found


def _told(name: str, measured: Sequence[Measured]) -> list[Score]:
    return [told_score(name, one.result, one.standard_error) for one in measured]


def _told_group(group: Subgroup) -> SubgroupScore:
    score = told_score(GLOBAL, group.measured.result, group.measured.standard_error)
    return SubgroupScore(group.column, group.category, group.rows, score)
