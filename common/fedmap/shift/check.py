"""Does a site look like the federation? Rows in blocks in, a report with a verdict in words out.

Verdicts:
- predict: nothing differs more than sites do by nature;
- fine_tune: something does: the model may fit less well here than at the federation's sites;
- do_not_use: an input differs grossly (more than three standard deviations, five times the spread or a fifth
  of it, or most rows beyond the federation's range): a wrong unit or other patients.

Fewer than 30 rows are too few to judge. The report says so, and the verdict is predict unless an input is so
far out that a unit must be wrong: more than 3 + 30/rows standard deviations. One patient can so be predicted,
and a column in grams for milligrams is still caught.

On calibration see `fedmap_lab.bench.shift_calibration`. No row and no value of one leaves the accumulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedmap.shift.joint import Flags
from fedmap.shift.judgement import Findings, judge
from fedmap.shift.reference import InputReference, Reference
from fedmap.shift.sample import Bins, Gathering, Sample
from fedmap.shift.wording import few_rows_sentences, input_reasons, verdict_sentences

Verdict = Literal["predict", "fine_tune", "do_not_use"]

LEAST_ROWS = 30
GROSS_DIFFERENCE = 3.0
GROSS_RATIO = 5.0
GROSS_OUTSIDE = 0.5
_FEW_ROWS = 30.0  # divided by the rows: standard deviations on top, where rows are too few


@dataclass(frozen=True)
class InputShift:
    """One input of the site against the federation, in the federation's standard deviations."""

    name: str
    mean: float  # in the model's units, as `federation_mean`
    federation_mean: float
    usual_difference: float  # standard deviation of the federation's sites around their mean
    standardised_difference: float
    given_others: float | None  # difference from what the other inputs of this site say
    deviation_ratio: float
    psi: float
    wasserstein: float
    outside: float  # share of rows beyond the federation's range
    alarm: bool
    gross: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class JointShift:
    """All inputs together."""

    distance: float  # Mahalanobis distance of the site's means, nature and sampling error allowed for
    usual_distance: float
    chance: float  # of one at least as large at a site of the federation
    alarm: bool


@dataclass(frozen=True)
class ShiftReport:
    """Whether the model can be used here."""

    verdict: Verdict
    rows: int
    inputs: tuple[InputShift, ...]
    joint: JointShift | None
    sentences: tuple[str, ...]
    """For people: what was compared, what differs, what it means."""


class ShiftAccumulator:
    """Takes rows in blocks; a million of them cost no more memory than a thousand."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._gathering = Gathering(reference)

    def add(self, features: Tensor) -> None:
        """Scaled (rows, inputs), in the order of the file: neighbouring rows may be of one patient."""
        self._gathering.add(features)

    def report(self) -> ShiftReport:
        return _report(self._reference, self._gathering.sample())


def check_shift(reference: Reference, features: Tensor) -> ShiftReport:
    """The same for rows that are all in memory."""
    accumulator = ShiftAccumulator(reference)
    accumulator.add(features)
    return accumulator.report()


def _report(reference: Reference, sample: Sample) -> ShiftReport:
    if sample.rows == 0:
        return ShiftReport("predict", 0, (), None, few_rows_sentences(reference, 0, ()))
    found = judge(reference, sample)
    distances = _wasserstein(reference, sample)
    enough = sample.rows >= LEAST_ROWS
    gross = _gross(reference, sample.rows, found, distances)
    alarms = (found.level | found.given | found.spread | found.shape | found.range) & enough
    inputs = tuple(
        _input_shift(known, sample, found, distances, bool(alarms[j] | gross[j]), bool(gross[j]), j)
        for j, known in enumerate(reference.inputs)
    )
    joint = None
    if found.distance is not None and found.chance is not None and reference.joint is not None:
        usual = reference.joint.dimensions**0.5
        joint = JointShift(found.distance, usual, found.chance, found.joint and enough)
    named = tuple(shift for shift in inputs if shift.alarm)
    verdict: Verdict = "predict"
    if gross.any():
        verdict = "do_not_use"
    elif named or (joint is not None and joint.alarm):
        verdict = "fine_tune"
    told = tuple((shift.name, shift.reasons) for shift in sorted(named, key=_strength))
    if enough:
        sentences = verdict_sentences(reference, sample.rows, verdict, told)
    else:
        sentences = few_rows_sentences(reference, sample.rows, told)
    return ShiftReport(verdict, sample.rows, inputs, joint, sentences)


def _strength(shift: InputShift) -> tuple[bool, float]:
    """Gross ones first, then by size."""
    size = max(abs(shift.standardised_difference), abs(shift.given_others or 0.0), shift.wasserstein)
    return not shift.gross, -size


def _gross(reference: Reference, rows: int, found: Findings, distances: list[float]) -> Flags:
    """Of a sparse input only rows beyond the range are gross: all others are such as the federation has."""
    possible = np.array([not one.sparse for one in reference.inputs], dtype=np.bool_)
    if rows < LEAST_ROWS:
        return np.asarray(possible & (np.abs(found.difference) > GROSS_DIFFERENCE + _FEW_ROWS / rows))
    number = np.array([not one.indicator for one in reference.inputs], dtype=np.bool_)
    far = (np.abs(found.difference) > GROSS_DIFFERENCE) | (np.array(distances) > GROSS_DIFFERENCE)
    spread = (found.ratio > GROSS_RATIO) | (found.ratio < 1 / GROSS_RATIO)
    beyond = found.range & (found.outside > GROSS_OUTSIDE) & number
    level = found.level | found.given | found.shape | found.range
    return np.asarray(possible & ((far & level) | (spread & found.spread)) | beyond)


def _input_shift(
    known: InputReference,
    sample: Sample,
    found: Findings,
    distances: list[float],
    alarm: bool,
    gross: bool,
    j: int,
) -> InputShift:
    given = None if found.given_difference is None else float(found.given_difference[j])
    return InputShift(
        name=known.name,
        mean=float(sample.inputs.mean[j]),
        federation_mean=known.centre,
        usual_difference=known.between / (known.deviation or 1.0),
        standardised_difference=float(found.difference[j]),
        given_others=given,
        deviation_ratio=float(found.ratio[j]),
        psi=float(found.psi[j]),
        wasserstein=distances[j],
        outside=float(found.outside[j]),
        alarm=alarm,
        gross=gross,
        reasons=input_reasons(known, sample, found, j) if alarm else (),
    )


def _wasserstein(reference: Reference, sample: Sample) -> list[float]:
    """Area between the distribution functions at the bins' edges, in standard deviations.

    What lies in an open bin has no width there; the distance is never less than that of the means.
    """
    mean = torch.tensor([one.mean for one in reference.inputs], dtype=torch.float64)
    unit = torch.tensor([one.deviation or 1.0 for one in reference.inputs], dtype=torch.float64)
    area = Bins.of(reference).area(sample.shares)
    distances: list[float] = (torch.maximum(area, (sample.inputs.mean - mean).abs()) / unit).tolist()
    return distances
