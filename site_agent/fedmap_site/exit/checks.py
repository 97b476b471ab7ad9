"""The checks of the exit gate: an answer in, what may leave of it out, with a record of every check.

Steps: (1) floors of rows and events, (2) small cells in counts, losses, scores, thresholds and groups, (3)
length and noise of parameters, (4) the tensors are exactly those of the task. Only counts of rows are used,
never the rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.contract.v1.values import (
    EvaluationAnswer,
    FailureAnswer,
    FitAnswer,
    InitialModelAnswer,
    RuleAnswer,
    Score,
    StatisticsAnswer,
)
from fedmap.errors import ModelError
from fedmap.metrics import SkippedMetric
from fedmap.scoring.disclosure import is_small_cell
from fedmap.study.answers import Content, Tensors, Work, encode_work, terms_of, told_score
from fedmap.study.failures import failure_of
from fedmap.study.models import model_of
from fedmap.study.plan.study_plan import StudyPlan
from fedmap.study.tensors.parameter_files import (
    PriorFile,
    decode_parameters,
    decode_statistics,
    decode_theta,
)
from fedmap_site.data.cell_counts import CellCounts
from fedmap_site.exit.figures import DEFECT, check_counts, check_evaluation, check_reference_terms
from fedmap_site.exit.manifest import Check
from fedmap_site.exit.protection import protect
from fedmap_site.policy import Floors, SitePolicy

WITHHELD_NOTE = "withheld: below the site's floor"
_VAGUE_NOTE = "not measured as defined; the details stay at the site"
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Checked:
    """What is left of an answer after the checks."""

    content: Content
    tensors: bytes
    checks: tuple[Check, ...]


class AnswerChecks:
    """The checks of one answer, in order; used once."""

    def __init__(self, plan: StudyPlan, floors: Floors, policy: SitePolicy, cells: CellCounts) -> None:
        self._plan = plan
        self._network = model_of(plan).network
        self._floors = floors
        self._policy = policy
        self._cells = cells
        self._checks: list[Check] = []

    def run(self, work: Work, prior: PriorFile | None) -> Checked:
        """What may leave. A `ModelError` means that the agent itself is at fault, and nothing leaves."""
        content, left = work.content, work.tensors
        self._checks += [Check("small cells", "changed", note) for note in work.notes]
        if not isinstance(content, FailureAnswer) and not self._reaches_floors():  # (1)
            return Checked(failure_of("data"), b"", tuple(self._checks))
        match content:  # (2), (3)
            case FitAnswer():
                content = self._fit(content)
                if work.model is not None and not work.model.is_personal:
                    self._note("consensus round", True, "", "the tensors are θ_k + u_k, one vector")
                left = self._protected(left, prior)
            case RuleAnswer():
                content = self._rule(content)
            case StatisticsAnswer():
                check_counts(content, self._floors.min_cell)
                self._note("counts", True, "", f"rounded to multiples of {self._floors.min_cell}")
            case EvaluationAnswer():
                content = self._evaluation(content)
        tensors = encode_work(self._network, left)
        self._check_tensors(content, tensors)  # (4)
        return Checked(content, tensors, tuple(self._checks))

    def _note(self, name: str, passed: bool, otherwise: str, text: str = "as computed") -> bool:
        self._checks.append(Check(name, "passed", text) if passed else Check(name, "withheld", otherwise))
        return passed

    def _reaches_floors(self) -> bool:
        enough = self._floors.allow(self._cells.training_rows, self._cells.training_events)
        text = f"at least {self._floors.min_rows} rows and {self._floors.min_events} events for training"
        outcome = Check("floors", "passed", text) if enough else Check("floors", "refused", f"not {text}")
        self._checks.append(outcome)
        return enough

    def _fit(self, content: FitAnswer) -> FitAnswer:
        floor, loss = self._floors.min_cell, content.validation_loss
        if loss is not None and is_small_cell(self._cells.validation.rows, floor):
            loss = None
            self._note("validation loss", False, f"fewer than {floor} validation rows")
        scores = self._scores(content.validation_scores, self._cells.validation.is_small(floor), "validation")
        return replace(content, validation_loss=loss, validation_scores=scores)

    def _scores(self, scores: Sequence[Score], small: bool, part: str) -> tuple[Score, ...]:
        """Scores of too few rows, or of a class with too few, stay home; notes lose their small numbers."""
        floor = self._floors.min_cell
        if not scores:
            return ()
        if not self._note(f"{part} scores", not small, f"a cell of the {part} rows is below {floor}"):
            return tuple(told_score(s.model, SkippedMetric(s.metric, WITHHELD_NOTE)) for s in scores)
        return tuple(_without_small_numbers(s, floor) for s in scores)

    def _rule(self, content: RuleAnswer) -> RuleAnswer:
        floor = self._floors.min_cell
        if self._plan.task.kind == "cox" or self._cells.validation.rows >= floor:
            return content
        self._note("threshold", False, f"fewer than {floor} validation rows")
        return replace(content, threshold=None, validation_rows=0)

    def _evaluation(self, content: EvaluationAnswer) -> EvaluationAnswer:
        floor = self._floors.min_cell
        small = self._cells.test.is_small(floor)
        scores = self._scores(content.scores, small, "test")
        if small:  # then there is no calibration, and no group, that could leave
            return EvaluationAnswer(scores)
        check_evaluation(content, self._plan, self._cells, floor)
        self._note("calibration and groups", True, "", f"no cell below {floor}")
        groups = tuple(
            replace(group, score=_without_small_numbers(group.score or Score(), floor))
            for group in content.subgroups
        )
        return replace(content, scores=scores, subgroups=groups)

    def _protected(self, tensors: Tensors | None, prior: PriorFile | None) -> Tensors | None:
        if not isinstance(tensors, SiteParameters) or prior is None or not self._policy.clip_norm:
            return tensors
        done = protect(tensors, prior.prior, self._policy)
        text = f"step from the global model at most {self._policy.clip_norm:g}"
        if done.clipped:
            self._checks.append(Check("clip", "changed", f"{text}: it was longer and was shortened"))
        else:
            self._checks.append(Check("clip", "passed", text))
        if done.noise:
            self._checks.append(
                Check("noise", "changed", f"Gaussian, σ = {done.noise:g}; the site keeps its exact model")
            )
        return done.parameters

    def _check_tensors(self, content: Content, tensors: bytes) -> None:
        """Names, shapes, types, finite: exactly what this kind of answer may carry, else a `ModelError`."""
        text = "exactly the expected names, shapes and types, finite"
        match content:
            case _ if not tensors:
                text = "there are none"
            case StatisticsAnswer():
                decode_statistics(tensors, content.rows, self._network.inputs)
            case InitialModelAnswer():
                decode_theta(self._network, tensors)
            case FitAnswer():
                decode_parameters(self._network, tensors)
            case RuleAnswer():
                self._check_rule(content, tensors)
            case _:
                raise ModelError("this kind of answer carries no tensors", hint=DEFECT)
        self._checks.append(Check("tensors", "passed", text))

    def _check_rule(self, content: RuleAnswer, tensors: bytes) -> None:
        terms, reference = terms_of(self._plan, content, tensors)
        floor = self._floors.min_cell
        if terms.baseline is not None and 0 < round(float(terms.baseline.events.sum())) < floor:
            raise ModelError(
                f"the baseline terms hold fewer than {floor} events in all",
                hint=DEFECT,
            )
        if reference is not None:
            check_reference_terms(reference, self._cells, floor)
            self._note("reference", True, "", f"counts and moments of all rows, no cell below {floor}")


def _without_small_numbers(score: Score, floor: int) -> Score:
    if any(is_small_cell(int(number), floor) for number in _NUMBER.findall(score.note)):
        return replace(score, note=_VAGUE_NOTE)
    return score
