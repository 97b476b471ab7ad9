"""A site's half of a round around its fit: hand-computed values, and what a round makes of what was kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedmap.algorithm.examples import Examples
from fedmap.algorithm.fit.round import LocalRound, MultiplierPull, OwnModel
from fedmap.algorithm.fit.values import LocalFit
from fedmap.algorithm.model.layers import Buffers
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.prior.values import Prior
from fedmap.algorithm.settings import FedmapSettings, PriorSettings, StartRule, TrainingSettings

NO_BUFFERS = Buffers(torch.zeros(0), torch.zeros(0), torch.zeros(0, dtype=torch.int64))
ROWS = Examples(torch.zeros(2, 1), torch.zeros(2))
PRIOR = Prior(torch.tensor([1.0, 2.0]), NO_BUFFERS, torch.zeros(0))


def in_round(number: int, start: StartRule = "global") -> LocalRound:
    """Rounds 1 and 2 of three are consensus rounds."""
    training = TrainingSettings(start=start, consensus_share=0.67)
    return LocalRound(FedmapSettings(PriorSettings(alpha=0.25), training), number, 3)


def own(theta: list[float], multiplier: list[float] | None = None) -> OwnModel:
    kept = None if multiplier is None else torch.tensor(multiplier)
    return OwnModel(SiteParameters(torch.tensor(theta), NO_BUFFERS), kept)


def fitted(*theta: float) -> LocalFit:
    return LocalFit(torch.tensor(theta), NO_BUFFERS, 0.0, 1.0, 0.0, 2, 1, 1, None)


def values(tensor: Tensor | None) -> list[float]:
    assert tensor is not None
    return [float(value) for value in tensor]


def test_a_consensus_round_adds_the_step_from_mu_to_the_multiplier() -> None:
    kept = in_round(1).kept(PRIOR, None, fitted(1.5, 1.0))
    assert values(kept.multiplier) == [0.5, -1.0]
    assert values(kept.parameters.theta) == [1.5, 1.0]
    again = in_round(2).kept(PRIOR, kept, fitted(2.0, 2.5))
    assert values(again.multiplier) == [1.5, -0.5]


def test_after_a_consensus_round_the_multiplier_is_sent_along_in_one_vector() -> None:
    kept = in_round(2).kept(PRIOR, own([9.0, 9.0], [0.5, -1.0]), fitted(2.0, 2.5))
    assert values(kept.update.theta) == [2.0 + 1.5, 2.5 - 0.5]
    assert values(kept.parameters.theta) == [2.0, 2.5]
    assert not kept.is_personal


def test_after_a_round_under_the_prior_the_model_itself_is_sent_and_the_multiplier_forgotten() -> None:
    kept = in_round(3).kept(PRIOR, own([9.0, 9.0], [0.5, -1.0]), fitted(2.0, 2.5))
    assert kept.update is kept.parameters
    assert kept.is_personal
    assert kept.multiplier is None
    assert in_round(3).rule is None
    assert in_round(3).task(PRIOR, own([9.0, 9.0], [0.5, -1.0]), ROWS, ROWS, 0).beside is None


@pytest.mark.parametrize("number", [1, 3], ids=["consensus", "under the prior"])
@pytest.mark.parametrize(("start", "expected"), [("local", [9.0, 9.0]), ("global", [1.0, 2.0])])
def test_a_fit_starts_where_the_plan_says(number: int, start: StartRule, expected: list[float]) -> None:
    this = in_round(number, start)
    assert values(this.task(PRIOR, own([9.0, 9.0]), ROWS, ROWS, 0).theta) == expected
    assert values(this.task(PRIOR, None, ROWS, ROWS, 0).theta) == [1.0, 2.0], "nothing of its own yet"


@pytest.mark.parametrize("number", [2, 3], ids=["consensus", "under the prior"])
def test_a_fit_starts_at_the_sites_model_and_not_at_what_it_sent(number: int) -> None:
    kept = own([9.0, 9.0], [0.5, -1.0])
    assert values(in_round(number, "local").task(PRIOR, kept, ROWS, ROWS, 0).theta) == [9.0, 9.0]


def test_a_consensus_fit_is_pulled_to_mu_less_its_multiplier() -> None:
    """Against autograd on α‖θ − μ + u‖², with what a task really carries."""
    this = in_round(2)
    task = this.task(PRIOR, own([9.0, 9.0], [0.5, -1.0]), ROWS, ROWS, 0)
    assert task.beside is not None
    assert isinstance(this.rule, MultiplierPull)
    theta = torch.tensor([[0.3, -0.7]])
    gradient = torch.ones_like(theta)
    this.rule.add(theta, task.beside.unsqueeze(0), gradient)
    leaf = theta.clone().requires_grad_()
    (0.25 * (leaf - PRIOR.mu + torch.tensor([0.5, -1.0])).square().sum()).backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    assert torch.allclose(gradient, 1 + leaf.grad)


def consensus_rounds(share: float, rounds: int) -> list[int]:
    settings = FedmapSettings(training=TrainingSettings(consensus_share=share))
    return [number for number in range(1, rounds + 1) if settings.is_consensus(number, rounds)]


@pytest.mark.parametrize(
    ("share", "rounds", "first"),
    [
        (0.0, 5, 0),
        (0.5, 1, 0),
        (0.5, 3, 1),
        (0.67, 30, 20),
        (0.29, 100, 29),
        (0.7, 90, 63),
        (0.99999999, 7, 6),
    ],
)
def test_consensus_rounds_are_their_share_of_the_rounds_rounded_down(
    share: float, rounds: int, first: int
) -> None:
    assert consensus_rounds(share, rounds) == list(range(1, first + 1))


def test_the_learned_penalty_rests_in_consensus_rounds() -> None:
    settings = FedmapSettings(training=TrainingSettings(consensus_share=0.5))
    assert settings.aggregation_in(2, 4) == replace(settings.aggregation, psi_steps=0)
    assert settings.aggregation_in(3, 4) == settings.aggregation


@given(share=st.floats(0, 1, exclude_max=True), rounds=st.integers(1, 300))
def test_consensus_rounds_come_first_and_never_have_the_last_round(share: float, rounds: int) -> None:
    found = consensus_rounds(share, rounds)
    assert found == list(range(1, len(found) + 1))
    assert len(found) < rounds
