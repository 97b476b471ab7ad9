"""What a site builds a round on: rounds that a reviewer kept back stay back, rounds that were late do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedmap.study.models import model_of
from fedmap.study.tensors.parameter_files import PriorFile, decode_parameters
from fedmap.study.terms import StudyTerms
from fedmap_site.config import DataSection
from fedmap_site.exit.item import OutboxItem
from fedmap_site.loop.workplace import Workplace
from tests.site_agent.stages import Bench, task, terms_of

REVIEWER = "Data protection"


def terms_with(consensus_share: float) -> StudyTerms:
    """Of ten rounds, started at the global model."""
    terms = terms_of()
    training = replace(terms.plan.training, start="global", consensus_share=consensus_share)
    return replace(terms, plan=terms.plan.model_copy(update={"training": training}), rounds=10)


class Site(Bench):
    """A site in review mode, and what it does in rounds that are asked of it."""

    def do(self, number: int, prior: PriorFile, attempt: int = 1) -> OutboxItem:
        workplace = Workplace(
            self.site, self.state, self.outbox, DataSection(file=self.file), self.policy, self.clock
        )
        asked = task("fit", number, attempt)
        dataset = self.dataset()
        work = workplace.work(asked, self.terms, dataset, prior)
        return workplace.keep(asked, self.terms, work, dataset, prior)

    def sent(self, item: OutboxItem) -> torch.Tensor:
        assert item.tensors_path is not None
        return decode_parameters(model_of(self.terms.plan).network, item.tensors_path).theta


def site_in(folder: Path, consensus_share: float) -> Site:
    folder.mkdir()
    site = Site(folder, terms_with(consensus_share))
    site.state.approve(site.terms, REVIEWER, 1, "p" * 64)
    site.outbox.release(site.do(1, site.prior()).id, REVIEWER)
    return site


def odd(prior: PriorFile) -> PriorFile:
    """A prior that a reviewer would wonder about."""
    return replace(prior, prior=replace(prior.prior, mu=prior.prior.mu + 0.3))


@pytest.mark.parametrize("consensus_share", [0.0, 0.9])
def test_what_a_reviewer_kept_back_leaves_with_no_later_round(tmp_path: Path, consensus_share: float) -> None:
    never = site_in(tmp_path / "never", consensus_share)
    rejected = site_in(tmp_path / "rejected", consensus_share)
    rejected.outbox.reject(rejected.do(2, odd(rejected.prior())).id, REVIEWER)
    expected = never.sent(never.do(3, never.prior()))
    assert torch.equal(rejected.sent(rejected.do(3, rejected.prior())), expected)


def test_an_answer_that_only_came_too_late_still_counts_in_the_next_round(tmp_path: Path) -> None:
    never, late = site_in(tmp_path / "never", 0.9), site_in(tmp_path / "late", 0.9)
    late.outbox.withdraw(late.do(2, late.prior()).id, "the round was closed")
    without = never.sent(never.do(3, never.prior()))
    assert not torch.allclose(late.sent(late.do(3, late.prior())), without)


def test_a_second_attempt_that_was_released_counts_again(tmp_path: Path) -> None:
    once, twice = site_in(tmp_path / "once", 0.9), site_in(tmp_path / "twice", 0.9)
    once.outbox.release(once.do(2, once.prior()).id, REVIEWER)
    twice.outbox.reject(twice.do(2, twice.prior()).id, REVIEWER)
    twice.outbox.release(twice.do(2, twice.prior(), attempt=2).id, REVIEWER)
    expected = once.sent(once.do(3, once.prior()))
    assert torch.equal(twice.sent(twice.do(3, twice.prior())), expected)
