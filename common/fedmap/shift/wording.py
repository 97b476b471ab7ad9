"""The words of a shift report, for a clinician and for whoever prepares the data. No row's values."""

from __future__ import annotations

from collections.abc import Sequence

from fedmap.shift.judgement import Findings
from fedmap.shift.reference import InputReference, Reference
from fedmap.shift.sample import Sample

_MOST_NAMED = 8
_PLAIN = 3.0  # standard deviations: too far for any finer question to matter
_CHECK = "Check the unit and the coding of the columns named first; most such differences are mistakes."


def input_reasons(known: InputReference, sample: Sample, found: Findings, j: int) -> tuple[str, ...]:
    """Why an input was named; the plainest first."""
    reasons = []
    difference, ratio = float(found.difference[j]), float(found.ratio[j])
    if found.level[j] or abs(difference) > _PLAIN:
        reasons.append(_level(known, float(sample.inputs.mean[j]), difference))
    elif found.given[j] and found.given_difference is not None:
        given = float(found.given_difference[j])
        reasons.append(
            f"{abs(given):.1f} standard deviations {_way(given)} than the other inputs of these rows suggest"
        )
    if found.spread[j]:
        many = f"its spread is {ratio:.2g} times that at the federation's sites"
        reasons.append(many if ratio > 0 else "it is the same in all rows")
    if found.range[j]:
        reasons.append(f"{_percent(float(found.outside[j]))} of the rows lie beyond the federation's range")
    if found.shape[j] and not reasons:
        reasons.append(f"it is distributed differently (stability index {float(found.psi[j]):.2f})")
    return tuple(reasons)


def _level(known: InputReference, mean: float, difference: float) -> str:
    if known.indicator:
        return f"{_percent(mean)} of the rows have it, {_percent(known.centre)} at the federation's sites"
    return f"{abs(difference):.1f} standard deviations {_way(difference)} than at the federation's sites"


def verdict_sentences(
    reference: Reference, rows: int, verdict: str, named: Sequence[tuple[str, tuple[str, ...]]]
) -> tuple[str, ...]:
    """What was compared, the verdict, and each input that led to it."""
    compared = _compared(reference, rows)
    if verdict == "predict":
        return (
            compared,
            "These rows look like those of the federation: nothing differs more than its sites do by nature.",
        )
    listed = _listed(named)
    if verdict == "do_not_use":
        return (compared, "These rows are not like those of the federation: do not use the model on them.",
                *listed, _CHECK)  # fmt: skip
    if not named:
        return (
            compared,
            "No single input stands out, but together they are not where those of the federation are.",
        )
    return (
        compared,
        "These rows differ from those of the federation by more than its sites do by nature.",
        *listed,
        _CHECK,
    )


def few_rows_sentences(
    reference: Reference, rows: int, named: Sequence[tuple[str, tuple[str, ...]]]
) -> tuple[str, ...]:
    too_few = "Too few rows were given to judge whether they look like the federation's; 30 are needed."
    if not named:
        return _compared(reference, rows), too_few
    return (_compared(reference, rows), too_few,
            "But these inputs are so far out that a unit must be wrong: do not use the model on them.",
            *_listed(named))  # fmt: skip


def _compared(reference: Reference, rows: int) -> str:
    return f"{rows:,} row(s) compared with {reference.rows:,} rows of {reference.sites:,} sites."


def _listed(named: Sequence[tuple[str, tuple[str, ...]]]) -> list[str]:
    lines = [f"{name}: {'; '.join(reasons)}." for name, reasons in named[:_MOST_NAMED]]
    if len(named) > _MOST_NAMED:
        lines.append(f"And {len(named) - _MOST_NAMED} more inputs.")
    return lines


def _way(difference: float) -> str:
    return "higher" if difference > 0 else "lower"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 or share == 0 else "less than 1 %"
