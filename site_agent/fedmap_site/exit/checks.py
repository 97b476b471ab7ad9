"""The checks of the exit gate: an answer in, what may leave of it out, with a record of every check.

Steps: (1) floors of rows and events, (2) small cells in counts, losses, scores, thresholds and groups, (3)
length and noise of parameters, (4) the tensors are exactly those of the task. Only counts of rows are used,
never the rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fedmap.contract import wire
from fedmap.contract.v1 import federation_pb2 as pb
from fedmap.contract.v1 import values
from fedmap.errors import ModelError
from fedmap.metrics import SkippedMetric
from fedmap.scoring.disclosure import is_small_cell
from fedmap.study.answers import terms_of, told_score
from fedmap.study.models import model_of
from fedmap.study.plan import StudyPlan
from fedmap.study.tensors.parameter_files import (
    PriorFile,
    decode_parameters,
    decode_statistics,
    decode_theta,
    encode_parameters,
)
from fedmap_site.data.cell_counts import CellCounts
from fedmap_site.exit.figures import DEFECT, check_counts, check_evaluation, check_reference_terms
from fedmap_site.exit.manifest import Check
from fedmap_site.exit.protection import protect
from fedmap_site.policy import Floors, SitePolicy
from fedmap_site.work.failures import failure_of
from fedmap_site.work.trainer import Content, Work

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
        content, tensors = work.content, work.tensors
        self._checks += [Check("small cells", "changed", note) for note in work.notes]
        if not isinstance(content, pb.FailureAnswer) and not self._reaches_floors():  # (1)
            return Checked(failure_of("data"), b"", tuple(self._checks))
        match content:  # (2), (3)
            case pb.FitAnswer():
                content = self._fit(content)
                if work.model is not None and not work.model.is_personal:
                    self._note("consensus round", True, "", "the tensors are θ_k + u_k, one vector")
                tensors = self._protected(tensors, prior)
            case pb.RuleAnswer():
                content = self._rule(content)
            case pb.StatisticsAnswer():
                check_counts(content, self._floors.min_cell)
                self._note("counts", True, "", f"rounded to multiples of {self._floors.min_cell}")
            case pb.EvaluationAnswer():
                content = self._evaluation(content)
        self._check_tensors(content, tensors)  # (4)
        return Checked(content, tensors, tuple(self._checks))

    def _note(self, name: str, passed: bool, otherwise: str, text: str = "as computed") -> bool:
        self._checks.append(Check(name, "passed", text) if passed else Check(name, "withheld", otherwise))
        return passed

    def _reaches_floors(self) -> bool:
        enough = self._cells.reaches(self._floors)
        text = f"at least {self._floors.min_rows} rows and {self._floors.min_events} events for training"
        outcome = Check("floors", "passed", text) if enough else Check("floors", "refused", f"not {text}")
        self._checks.append(outcome)
        return enough

    def _fit(self, content: pb.FitAnswer) -> pb.FitAnswer:
        kept = pb.FitAnswer()
        kept.CopyFrom(content)
        floor = self._floors.min_cell
        if kept.HasField("validation_loss") and is_small_cell(self._cells.validation.rows, floor):
            kept.ClearField("validation_loss")
            self._note("validation loss", False, f"fewer than {floor} validation rows")
        scores = self._scores(kept.validation_scores, self._cells.validation.is_small(floor), "validation")
        del kept.validation_scores[:]
        kept.validation_scores.extend(scores)
        return kept

    def _scores(self, scores: Sequence[pb.Score], small: bool, part: str) -> list[pb.Score]:
        """Scores of too few rows, or of a class with too few, stay home; notes lose their small numbers."""
        floor = self._floors.min_cell
        if not scores:
            return []
        if not self._note(f"{part} scores", not small, f"a cell of the {part} rows is below {floor}"):
            return [_message(told_score(s.model, SkippedMetric(s.metric, WITHHELD_NOTE))) for s in scores]
        return [_without_small_numbers(s, floor) for s in scores]

    def _rule(self, content: pb.RuleAnswer) -> pb.RuleAnswer:
        kept = pb.RuleAnswer()
        kept.CopyFrom(content)
        rows, floor = self._cells.validation.rows, self._floors.min_cell
        if self._plan.task.kind != "cox" and rows < floor:
            kept.ClearField("threshold")
            kept.validation_rows = 0
            self._note("threshold", False, f"fewer than {floor} validation rows")
        return kept

    def _evaluation(self, content: pb.EvaluationAnswer) -> pb.EvaluationAnswer:
        floor = self._floors.min_cell
        small = self._cells.test.is_small(floor)
        scores = self._scores(content.scores, small, "test")
        if small:  # then there is no calibration, and no group, that could leave
            return pb.EvaluationAnswer(scores=scores)
        check_evaluation(content, self._plan, self._cells, floor)
        self._note("calibration and groups", True, "", f"no cell below {floor}")
        kept = pb.EvaluationAnswer()
        kept.CopyFrom(content)
        del kept.scores[:]
        kept.scores.extend(scores)
        for group in kept.subgroups:
            group.score.CopyFrom(_without_small_numbers(group.score, floor))
        return kept

    def _protected(self, tensors: bytes, prior: PriorFile | None) -> bytes:
        if not tensors or prior is None or not self._policy.clip_norm:
            return tensors
        done = protect(decode_parameters(self._network, tensors), prior.prior, self._policy)
        text = f"step from the global model at most {self._policy.clip_norm:g}"
        if done.clipped:
            self._checks.append(Check("clip", "changed", f"{text}: it was longer and was shortened"))
        else:
            self._checks.append(Check("clip", "passed", text))
        if done.noise:
            self._checks.append(
                Check("noise", "changed", f"Gaussian, σ = {done.noise:g}; the site keeps its exact model")
            )
        return encode_parameters(self._network, done.parameters)

    def _check_tensors(self, content: Content, tensors: bytes) -> None:
        """Names, shapes, types, finite: exactly what this kind of answer may carry, else a `ModelError`."""
        if not tensors:
            self._checks.append(Check("tensors", "passed", "there are none"))
            return
        match content:
            case pb.StatisticsAnswer():
                decode_statistics(tensors, content.rows, self._network.inputs)
            case pb.InitialModelAnswer():
                decode_theta(self._network, tensors)
            case pb.FitAnswer():
                decode_parameters(self._network, tensors)
            case pb.RuleAnswer():
                self._check_rule(content, tensors)
            case _:
                raise ModelError(
                    "this kind of answer carries no tensors",
                    hint=DEFECT,
                )
        self._checks.append(
            Check("tensors", "passed", "exactly the expected names, shapes and types, finite")
        )

    def _check_rule(self, content: pb.RuleAnswer, tensors: bytes) -> None:
        terms, reference = terms_of(self._plan, wire.value_of(values.RuleAnswer, content), tensors)
        floor = self._floors.min_cell
        if terms.baseline is not None and 0 < round(float(terms.baseline.events.sum())) < floor:
            raise ModelError(
                f"the baseline terms hold fewer than {floor} events in all",
                hint=DEFECT,
            )
        if reference is not None:
            check_reference_terms(reference, self._cells, floor)
            self._note("reference", True, "", f"counts and moments of all rows, no cell below {floor}")


def _message(score: values.Score) -> pb.Score:
    return pb.Score.FromString(wire.write(score))


def _without_small_numbers(score: pb.Score, floor: int) -> pb.Score:
    if not any(is_small_cell(int(number), floor) for number in _NUMBER.findall(score.note)):
        return score
    kept = pb.Score()
    kept.CopyFrom(score)
    kept.note = _VAGUE_NOTE
    return kept
