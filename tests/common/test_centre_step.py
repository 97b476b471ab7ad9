"""What the centre decides between steps, for every runtime alike."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from fedmap.algorithm.model.layers import Buffers
from fedmap.algorithm.prior.aggregation import PriorStep
from fedmap.algorithm.prior.values import Prior
from fedmap.errors import TrainingError
from fedmap.study.centre_step import check_step, reference_of, unusual_inputs, usual_sites


def test_the_most_common_inputs_are_the_usual_ones() -> None:
    assert usual_sites({"d": "x", "a": "y", "c": "x", "b": "z"}) == ("c", "d")
    assert "2 other" in unusual_inputs(2)


def test_of_equally_many_the_smallest_name_decides() -> None:
    assert usual_sites({"b": "x", "a": "y"}) == ("a",)
    assert usual_sites({}) == ()


def test_a_prior_that_is_not_finite_ends_the_round() -> None:
    buffers = Buffers(torch.zeros(2), torch.ones(2), torch.zeros(1, dtype=torch.int64))
    step = PriorStep(Prior(torch.zeros(3), buffers, torch.zeros(0)), {"a": 1.0}, 0.5, 0.1)
    check_step(step)
    with pytest.raises(TrainingError, match="penalty"):
        check_step(replace(step, penalty=math.nan))
    buffers.variance[1] = math.inf
    with pytest.raises(TrainingError, match="batch-norm"):
        check_step(step)


def test_without_sites_or_names_there_is_no_reference() -> None:
    assert reference_of({}, ("a",)) is None
