"""What the centre decides between two steps of a study, whatever carries the messages.

Which sites have the usual inputs, whether a computed prior can be used, what the reference of a release is.
Values in, values out: the mathematics is `fedmap.algorithm`, files and messages are the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from pydantic import ValidationError

from fedmap.algorithm.prior.aggregation import PriorStep
from fedmap.errors import TrainingError
from fedmap.process.log import get_logger
from fedmap.shift.pooling import LEAST_SITES, pool_reference
from fedmap.shift.reference import Reference
from fedmap.shift.told.terms import ReferenceTerms


def usual_sites(layouts: Mapping[str, str]) -> tuple[str, ...]:
    """Of sites and the digests of their inputs, those with the most common ones, sorted.

    Of equally many, those with the smallest name among them.
    """
    groups: dict[str, list[str]] = {}
    for site in sorted(layouts):
        groups.setdefault(layouts[site], []).append(site)
    if not groups:
        return ()
    largest = max(groups.values(), key=len)  # the first of them
    return tuple(largest)


def unusual_inputs(usual: int) -> str:
    """Why a site is left out of a study whose other inputs are the same at `usual` sites."""
    return f"the model's inputs differ from those of {usual} other site(s): other feature columns"


def check_step(step: PriorStep) -> None:
    """`TrainingError` for a prior that no round can start from."""
    if not (math.isfinite(step.penalty) and math.isfinite(step.convex_penalty)):
        raise TrainingError(
            "the penalty of the next prior is not a finite number",
            hint="`status` has the norm of each update: revoke a site that is far from the others; with a "
            "convex prior, lower aggregation.psi_learning_rate in the study plan",
        )
    buffers = step.prior.buffers
    if not bool(torch.isfinite(buffers.mean).all() and torch.isfinite(buffers.variance).all()):
        raise TrainingError(
            "the pooled batch-norm statistics are not finite",
            hint="`status` has the norm of each update: revoke a site that is far from the others",
        )


def reference_of(references: Mapping[str, ReferenceTerms], names: tuple[str, ...]) -> Reference | None:
    """The pooled reference; None where there is too little to pool, or inputs have no names."""
    told = {site: terms for site, terms in references.items() if terms.rows.item() > 0}
    if len(told) < LEAST_SITES or not names:
        return None
    try:
        return pool_reference(told, names)
    except (TrainingError, ValidationError) as error:
        # The model is as good without it: its bundle then says that there is no shift check.
        get_logger().warning("reference_not_pooled", exc_info=error)
        return None
