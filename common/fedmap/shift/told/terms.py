"""What one site lets go of for the federation's reference: counts, means and moments, never a row.

Small cells: an input in which fewer rows than the floor differ from all others is described as if none did
(as in `scoring.disclosure`); a category that has no indicator of its own and few rows is counted with the
most common of its neighbours; histogram cells are joined until none holds 1 to floor−1 rows; and where fewer
rows than the floor differ in two inputs at once, their common moment is that of none. A site with fewer rows
than the floor sends zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedmap.errors import ModelError, RejectedError
from fedmap.files.tensors import Array, Expected
from fedmap.scoring.disclosure import is_small_cell
from fedmap.shift.told.cells import CELLS, DOWN, UP, grid, histogram, join_small_cells
from fedmap.shift.told.folding import dimensions, fold

PREFIX = "reference."
_BLOCK = 512  # columns at a time, so that the products of a wide table are never all in memory
_ROUNDING = 1e-6


@dataclass(frozen=True)
class ReferenceTerms:
    """One site's inputs in the model's scale, all float64."""

    rows: Tensor  # ()
    floor: Tensor  # () no count below it was let go
    scaled: Tensor  # (inputs,) 1 where the input is standardised, 0 for indicators and raw numbers
    mean: Tensor  # (inputs,)
    m2: Tensor  # (inputs,) sum of squared deviations from the mean
    counts: Tensor  # (inputs, CELLS) on the fixed grid, small cells joined
    joint_mean: Tensor  # (dimensions,) of the folded rows
    joint_scatter: Tensor  # (dimensions, dimensions) sum of products of deviations from that mean


def reference_terms(features: Tensor, scaled_flags: tuple[bool, ...], floor: int) -> ReferenceTerms:
    """The terms of scaled (rows, inputs)."""
    rows, inputs = features.shape
    if len(scaled_flags) != inputs:
        raise ModelError(
            f"{inputs} inputs, but {len(scaled_flags)} are said to be scaled or not",
            hint="use the layout of the data set the rows come from",
        )
    if not bool(torch.isfinite(features).all()):
        raise ModelError(
            "scaled inputs that are not finite cannot be described",
            hint="check the columns' ranges in the plan; a value overflows when it is scaled",
        )
    scaled = torch.tensor(scaled_flags, dtype=torch.float64)
    if rows < max(floor, 1):
        return _nothing(scaled, floor)
    common = _without_rare(_without_small_rest(features.double(), scaled_flags, floor), floor)
    mean = common.mean(0)
    joint_mean, scatter = _joint(common, floor)
    return ReferenceTerms(
        rows=torch.tensor(float(rows), dtype=torch.float64),
        floor=torch.tensor(float(floor), dtype=torch.float64),
        scaled=scaled,
        mean=mean,
        m2=(common - mean).square().sum(0),
        counts=join_small_cells(histogram(common, grid(inputs)), floor),
        joint_mean=joint_mean,
        joint_scatter=scatter,
    )


def _nothing(scaled: Tensor, floor: int) -> ReferenceTerms:
    inputs, size = len(scaled), dimensions(len(scaled))
    zero = torch.zeros((), dtype=torch.float64)
    return ReferenceTerms(
        rows=zero,
        floor=torch.tensor(float(floor), dtype=torch.float64),
        scaled=scaled,
        mean=zero.expand(inputs).clone(),
        m2=zero.expand(inputs).clone(),
        counts=zero.expand(inputs, CELLS).clone(),
        joint_mean=zero.expand(size).clone(),
        joint_scatter=zero.expand(size, size).clone(),
    )


def _without_rare(values: Tensor, floor: int) -> Tensor:
    """Columns in which fewer rows than the floor differ from the usual value become constant."""
    usual = values.mode(0).values
    differing = (values != usual).sum(0)
    rare = (differing > 0) & (differing < floor)
    return torch.where(rare, usual, values) if bool(rare.any()) else values


def _without_small_rest(values: Tensor, scaled: tuple[bool, ...], floor: int) -> Tensor:
    """Few rows in which none of some neighbouring, exclusive indicators is set get the most common of them.

    The first category of a column has no indicator: it is what the others leave, and could be counted.
    """
    values = values.clone()
    indicator = ((values == 0) | (values == 1)).all(0) & ~torch.tensor(scaled)
    for first in indicator.nonzero().flatten().tolist():
        last, taken = first, values[:, first] == 1
        while last + 1 < len(scaled) and indicator[last + 1]:
            further = values[:, last + 1] == 1
            if bool((taken & further).any()):
                break
            last, taken = last + 1, taken | further
            if 0 < int((~taken).sum()) < floor:
                most = first + int(values[:, first : last + 1].sum(0).argmax())
                values[~taken, most] = 1.0
                break
    return values


def _joint(values: Tensor, floor: int) -> tuple[Tensor, Tensor]:
    """Mean and scatter of the folded rows; (rows, inputs) in.

    Counted from each column's usual value, the product moment of two columns is a sum over the rows in which
    both differ. Where those are too few, the sum is set to what it would be without them.
    """
    usual = values.mode(0).values
    offsets = values - usual  # (rows, inputs)
    differs = (offsets != 0).float()
    pairs = [
        fold(_products(offsets, differs, slice(at, at + _BLOCK), floor))
        for at in range(0, values.shape[1], _BLOCK)
    ]
    moment = fold(torch.cat(pairs).T)  # (dimensions, dimensions)
    shift = fold(offsets.mean(0))
    scatter = moment - len(values) * torch.outer(shift, shift)
    return fold(values.mean(0)), _positive((scatter + scatter.T) / 2)


def _products(offsets: Tensor, differs: Tensor, columns: slice, floor: int) -> Tensor:
    """Σ over rows of offset_i · offset_j without small cells: (columns, inputs)."""
    rows = len(offsets)
    product = offsets[:, columns].T @ offsets
    both = (differs[:, columns].T @ differs).double()
    small = (both > 0) & (both < floor)
    product = torch.where(small, 0.0, product)
    # Of two inputs with two values each the count of any of the four combinations can be worked out.
    other = _other_value(offsets)
    two_valued = ((offsets == 0) | (offsets == other)).all(0)
    pair = two_valued[columns].unsqueeze(1) & two_valued & ~small
    unit = torch.outer(other[columns], other)
    first, second = differs[:, columns].sum(0).double().unsqueeze(1), differs.sum(0).double()
    for count, without in (
        (first - both, first.expand_as(both)),
        (second - both, second.expand_as(both)),
        # None at all can be left over only where some are in both; else the two are told as independent.
        (rows - first - second + both, torch.where(both > 0, first + second - rows, first * second / rows)),
    ):
        hide = pair & (count > 0) & (count < floor)
        product = torch.where(hide, unit * without, product)
        pair &= ~hide
    return product


def _other_value(offsets: Tensor) -> Tensor:
    """Of a column with two values the one that is not usual (0): its only extreme besides."""
    high, low = offsets.max(0).values, offsets.min(0).values
    return torch.where(high > 0, high, low)


def _positive(scatter: Tensor) -> Tensor:
    """Hidden cells can leave a matrix that no rows have: the nearest one that some could have."""
    values, vectors = torch.linalg.eigh(scatter)
    if bool((values >= 0).all()):
        return scatter
    mended: Tensor = (vectors * values.clamp(min=0)) @ vectors.T
    return (mended + mended.T) / 2


def expected_reference(inputs: int) -> dict[str, Expected]:
    """Names, types and shapes of the terms of a model with that many inputs."""
    size = dimensions(inputs)
    shapes: dict[str, tuple[int, ...]] = {
        "rows": (),
        "floor": (),
        "scaled": (inputs,),
        "mean": (inputs,),
        "m2": (inputs,),
        "counts": (inputs, CELLS),
        "joint_mean": (size,),
        "joint_scatter": (size, size),
    }
    return {PREFIX + name: Expected("F64", shape) for name, shape in shapes.items()}


def encode_reference(terms: ReferenceTerms) -> dict[str, Tensor]:
    """Tensors by name, for the file they travel in."""
    return {PREFIX + name: tensor.contiguous() for name, tensor in vars(terms).items()}


def decode_reference(arrays: Mapping[str, Array | Tensor], inputs: int) -> ReferenceTerms:
    """The terms among `arrays`, which may hold other names too. Their values are `check_reference`'s."""
    read: dict[str, Tensor] = {}
    for name, wanted in expected_reference(inputs).items():
        found = arrays.get(name)
        _check(found is not None, f"{name} is missing")
        tensor = found if isinstance(found, Tensor) else torch.from_numpy(np.array(found))
        _check(tensor.dtype == torch.float64, f"{name} is not of type F64")
        _check(tuple(tensor.shape) == wanted.shape, f"{name} has the wrong shape")
        _check(bool(torch.isfinite(tensor).all()), f"{name} holds a value that is not finite")
        read[name.removeprefix(PREFIX)] = tensor
    unknown = [name for name in arrays if name.startswith(PREFIX) and name not in expected_reference(inputs)]
    _check(not unknown, f"{len(unknown)} tensors under {PREFIX} are not known")
    return ReferenceTerms(**read)


def check_reference(terms: ReferenceTerms, rows: int) -> None:
    """Refuses terms that no site with that many rows can have, and any that give a small cell away."""
    own, floor = terms.rows.item(), terms.floor.item()
    _check(own == int(own) and 0 <= own <= rows, "the reference speaks of more rows than the site has")
    _check(floor == int(floor) and floor >= 1, "the floor of the counts is no count")
    _check(own == 0 or not is_small_cell(int(own), int(floor)), "the rows of the reference are a small cell")
    _check(bool(((terms.scaled == 0) | (terms.scaled == 1)).all()), "the marks of scaled inputs are no marks")
    counts = terms.counts
    told = counts[(counts != UP) & (counts != DOWN)]
    _check(bool((told == told.round()).all()) and bool((told >= 0).all()), "a count is no count")
    _check(bool(((told == 0) | (told >= floor)).all()), "a count is below the floor")
    _check(bool((counts.clamp(min=0).sum(1) == own).all()), "the counts do not add up to the rows")
    _check(bool((terms.m2 >= 0).all()), "a sum of squares is negative")
    if own == 0:
        empty = (terms.mean, terms.m2, terms.joint_mean, terms.joint_scatter)
        _check(not any(bool(part.any()) for part in empty), "moments of no rows")
        return
    scatter = terms.joint_scatter
    size = float(scatter.diagonal().sum())
    _check(bool(torch.isfinite(scatter.square().sum())), "the joint moments are too large")
    _check(bool(torch.allclose(scatter, scatter.T)), "the joint moments are not symmetric")
    least = float(torch.linalg.eigvalsh(scatter).min())
    _check(least >= -_ROUNDING * max(size, 1.0), "the joint moments are those of no rows")


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RejectedError(
            f"reference terms: {otherwise}",
            hint="Check that both sides run compatible versions; the answer was not used.",
        )
