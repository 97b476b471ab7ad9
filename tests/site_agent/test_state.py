"""What the agent remembers: approvals bound to terms, models by round, and which agent it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedmap.algorithm.fit.round import OwnModel
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.errors import IntegrityError, NotFoundError, RejectedError, StateError, StorageError
from fedmap.study.models import model_of
from fedmap_site.state.studies import MODELS_KEPT, SiteState
from tests.site_agent.stages import terms_of

NETWORK = model_of(terms_of().plan).network


def state(folder: Path) -> SiteState:
    made = SiteState(folder)
    made.prepare()
    return made


def model(seed: int) -> OwnModel:
    return OwnModel(SiteParameters(NETWORK.initialise(seed), NETWORK.initial_buffers()))


def approve(own: SiteState, seed: int = 5) -> None:
    own.approve(terms_of(seed=seed), "Dr Grey", 1, "policy")


def test_a_restart_counts_up_under_the_same_identity(tmp_path: Path) -> None:
    first = state(tmp_path).begin()
    second = state(tmp_path).begin()
    assert second.id == first.id
    assert (first.start, second.start) == (1, 2)


def test_approved_terms_come_back_until_the_site_leaves(tmp_path: Path) -> None:
    own = state(tmp_path)
    approve(own)
    assert own.terms("toy") == terms_of()
    assert own.studies() == ("toy",)
    own.leave("toy")
    assert own.studies() == ()
    with pytest.raises(NotFoundError):
        own.terms("toy")


def test_a_study_that_was_never_approved_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        state(tmp_path).terms("toy")


def test_other_terms_cannot_take_the_place_of_approved_ones(tmp_path: Path) -> None:
    own = state(tmp_path)
    approve(own)
    approve(own)
    with pytest.raises(StateError, match="other terms"):
        approve(own, seed=6)
    own.leave("toy")
    approve(own, seed=6)
    assert own.terms("toy").seed == 6


def test_terms_changed_on_disk_are_noticed(tmp_path: Path) -> None:
    own = state(tmp_path)
    approve(own)
    (tmp_path / "studies" / "toy" / "terms.json").write_text(terms_of(seed=6).to_json())
    with pytest.raises(IntegrityError, match="approved"):
        own.terms("toy")


@pytest.mark.parametrize("name", ["../x", "/etc", "", "a/b", ".", "x" * 100])
def test_a_hostile_study_name_never_becomes_a_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(RejectedError):
        state(tmp_path).study_folder(name)


def test_a_fit_starts_from_the_newest_model_before_its_round(tmp_path: Path) -> None:
    own = state(tmp_path)
    assert own.newest_model("toy", NETWORK) is None
    own.save_model("toy", 1, NETWORK, model(1))
    own.save_model("toy", 2, NETWORK, model(2))
    assert own.newest_model("toy", NETWORK, before=1) is None
    for before, seed in ((2, 1), (3, 2), (None, 2)):
        found = own.newest_model("toy", NETWORK, before)
        assert found is not None
        assert torch.equal(found.parameters.theta, NETWORK.initialise(seed))


def test_the_multiplier_of_a_consensus_round_is_kept_with_the_model_of_that_round(tmp_path: Path) -> None:
    own = state(tmp_path)
    multiplier = NETWORK.initialise(7)
    own.save_model("toy", 1, NETWORK, replace(model(1), multiplier=multiplier))
    own.save_model("toy", 2, NETWORK, model(2))
    consensus, held = own.newest_model("toy", NETWORK, before=2), own.newest_model("toy", NETWORK)
    assert consensus is not None
    assert consensus.multiplier is not None
    assert torch.equal(consensus.multiplier, multiplier)
    assert torch.equal(consensus.parameters.theta, NETWORK.initialise(1))
    assert held is not None
    assert held.multiplier is None


def test_only_the_newest_models_are_kept(tmp_path: Path) -> None:
    own = state(tmp_path)
    for number in (1, 2, 9, 10, 11):
        own.save_model("toy", number, NETWORK, model(number))
    names = sorted(path.name for path in (tmp_path / "studies" / "toy" / "models").iterdir())
    assert names == [f"round-{number:04d}.safetensors" for number in (9, 10, 11)]
    assert len(names) == MODELS_KEPT
    assert own.delete_models("toy") == 3
    assert own.newest_model("toy", NETWORK) is None


def test_priors_of_earlier_rounds_are_deleted(tmp_path: Path) -> None:
    own = state(tmp_path)
    for digest in ("a" * 64, "b" * 64):
        own.prior_path("toy", digest).write_bytes(b"x")
    own.keep_only_prior("toy", "b" * 64)
    assert not own.prior_path("toy", "a" * 64).exists()
    assert own.prior_path("toy", "b" * 64).exists()


def test_what_a_killed_agent_left_half_written_is_removed(tmp_path: Path) -> None:
    own = state(tmp_path)
    own.save_model("toy", 1, NETWORK, model(1))
    leftover = tmp_path / "studies" / "toy" / "models" / ".part-1234"
    leftover.write_bytes(b"x")
    own.begin()
    assert not leftover.exists()


def test_a_second_agent_cannot_take_the_folder(tmp_path: Path) -> None:
    own = state(tmp_path)
    with own.lock, pytest.raises(StorageError, match="another process"):
        state(tmp_path).lock.acquire()


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    own = state(tmp_path)
    approve(own)
    (tmp_path / "studies" / "toy" / "approval.json").write_text("{}")
    with pytest.raises(IntegrityError, match=r"approval\.json"):
        own.terms("toy")
