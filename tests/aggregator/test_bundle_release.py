"""What becomes a bundle and what does not; the same release twice; withdrawals that nobody can hide."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedmap.bundles.loading import load_prior, load_shared
from fedmap.bundles.withdrawals import newer_of, read_withdrawals
from fedmap.contract.v1 import values
from fedmap.contract.v1.values import GlobalRule
from fedmap.errors import IntegrityError, NotFoundError, RejectedError, StateError, StorageError
from fedmap.study.course.state import StudyState, new_study
from fedmap.study.record import StudyRecord
from fedmap.study.tensors.parameter_files import decode_prior
from fedmap_aggregator.release.rule import baseline_of, releasable_round, threshold_of
from fedmap_aggregator.release.signing import planned_names
from fedmap_aggregator.store.bundle_records import BundleRecords
from tests.aggregator import small_study as made
from tests.aggregator.centre import OPERATOR, Centre, centre_in
from tests.aggregator.releases import (
    DAY_MS,
    actions,
    finish,
    link,
    make_finished,
    release,
    reopened,
    verified,
    withdraw,
)

YOUDEN = '[task.threshold]\nrule = "youden"\n'


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_finished(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def shared(state: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Centre]:
    """With a complete study, for the tests that only release from it."""
    with reopened(state, tmp_path_factory.mktemp("shared")) as centre:
        yield centre


@pytest.fixture
def centre(state: Path, tmp_path: Path) -> Iterator[Centre]:
    """With a complete study, for one test alone."""
    with reopened(state, tmp_path) as centre:
        yield centre


def test_a_released_bundle_verifies_offline_and_has_the_bits_of_the_prior(shared: Centre) -> None:
    centre, study = shared, made.Small(shared.service.study("small-binary").terms)
    released = release(centre)
    bundle = verified(centre, released.bundle)
    assert (bundle.sha256, bundle.size) == (released.bundle.sha256, released.bundle.size)
    state, plan = centre.service.study("small-binary").state, study.terms.plan
    path = centre.store.blobs.path(state.prior_digest)
    expected = decode_prior(study.model.network, plan.prior, path)
    prior, model = load_prior(bundle), load_shared(bundle)
    assert torch.equal(prior.mu, expected.prior.mu)
    assert torch.equal(prior.psi, expected.prior.psi)
    assert torch.equal(prior.buffers.variance, expected.prior.buffers.variance)
    assert torch.equal(model.scaler.mean, expected.scaler.mean)
    assert torch.equal(model.scaler.deviation, expected.scaler.deviation)
    assert state.rule is not None
    assert model.rule.threshold is not None
    assert model.rule.threshold.value == state.rule.threshold
    assert bundle.terms() == study.terms


def test_the_manifest_tells_where_the_model_comes_from(shared: Centre) -> None:
    centre, study = shared, made.Small(shared.service.study("small-binary").terms)
    bundle = release(centre).bundle
    manifest = verified(centre, bundle).manifest
    lineage = manifest.lineage
    assert (lineage.round, lineage.rounds, lineage.sites, lineage.accepted_updates) == (2, 2, 2, 4)
    assert lineage.prior_digest == centre.service.study("small-binary").state.prior_digest
    assert (manifest.terms_digest, manifest.plan_digest) == (study.terms.digest, study.terms.plan.digest)
    assert manifest.inputs == ("age", "lactate", "ward=b", "ward=c", "free")
    assert manifest.expires_unix_ms % DAY_MS == 0
    assert (manifest.expires_unix_ms - manifest.released_unix_ms) // DAY_MS == 365
    assert bundle.evaluated


def test_a_tier_three_bundle_has_no_prior_to_fine_tune(shared: Centre) -> None:
    released = release(shared, tier=3)
    assert (released.bundle.name, released.bundle.tier) == ("small-binary-t3", 3)
    with pytest.raises(StateError, match="cannot be fine-tuned"):
        load_prior(verified(shared, released.bundle))


def test_the_same_release_twice_is_one_version(centre: Centre) -> None:
    first = release(centre)
    centre.clock.now += 3 * DAY_MS
    centre.restart()
    again = release(centre)
    assert (first.made, again.made) == (True, False)
    assert again.bundle == first.bundle
    day = centre.clock.now + 30 * DAY_MS
    other = release(centre, expires=day)
    assert (other.made, other.bundle.version) == (True, 2)
    assert release(centre, expires=day).bundle == other.bundle
    assert [subject for _, action, subject in actions(centre) if action == "bundle.release"] == [
        "small-binary-t2-1.fedmap",
        "small-binary-t2-2.fedmap",
    ]


def test_an_expired_bundle_is_released_again_under_the_next_version(centre: Centre) -> None:
    first = release(centre)
    centre.clock.now = first.bundle.expires_unix_ms
    again = release(centre)
    assert (again.made, again.bundle.version) == (True, 2)


def test_a_crash_before_the_row_leaves_no_release_and_no_gap(
    centre: Centre, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("the disk is full", hint="free space")

    with monkeypatch.context() as patch:
        patch.setattr(BundleRecords, "add", fail)
        with pytest.raises(StorageError):
            release(centre)
    assert centre.catalogue.rows() == ()
    assert actions(centre) == []
    assert release(centre).bundle.version == 1


def test_a_prior_that_the_disk_has_changed_is_not_signed(centre: Centre) -> None:
    path = centre.store.blobs.path(centre.service.study("small-binary").state.prior_digest)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match="changed on the disk"):
        release(centre)


def test_an_earlier_round_carries_no_figures_and_says_so(shared: Centre) -> None:
    bundle = release(shared, round_number=1, tier=3, expires=shared.clock() + DAY_MS).bundle
    found = verified(shared, bundle)
    assert not bundle.evaluated
    assert all(not tier.estimates for tier in found.manifest.performance)
    assert found.manifest.calibration == ()
    assert "not evaluated" in found.card()
    assert found.manifest.threshold is not None
    assert (found.manifest.threshold.value, found.manifest.threshold.note) == (0.5, "")


@pytest.mark.parametrize("expires", [-1, 1, 3651])
def test_an_expiry_in_the_past_or_too_far_ahead_is_refused(shared: Centre, expires: int) -> None:
    moment = 1 if expires == 1 else shared.clock() + expires * DAY_MS
    with pytest.raises(RejectedError, match="expiry"):
        release(shared, expires=moment)


def test_unknown_studies_rounds_and_tiers_are_refused(shared: Centre) -> None:
    with pytest.raises(NotFoundError, match="no study"):
        release(shared, study="elsewhere")
    with pytest.raises(NotFoundError, match="2 rounds"):
        release(shared, round_number=3)
    with pytest.raises(RejectedError, match="tier 2 or 3"):
        release(shared, tier=1)


def test_a_study_without_a_model_or_still_being_measured_is_not_released(tmp_path: Path) -> None:
    with centre_in(tmp_path) as centre:
        finish(centre, "young", phase="initialisation")
        with pytest.raises(StateError, match="no model yet"):
            release(centre, "young")
        finish(centre, "measured", phase="evaluation")
        with pytest.raises(StateError, match="still measuring"):
            release(centre, "measured")
        assert release(centre, "measured", round_number=1).made


def test_an_aborted_study_gives_its_last_computed_round(tmp_path: Path) -> None:
    with centre_in(tmp_path) as centre:
        study = finish(centre, phase="rule", rounds=1)
        centre.control(study, "abort")
        released = release(centre)
        assert (released.bundle.round, released.bundle.evaluated) == (1, False)


def test_a_withdrawn_bundle_is_on_every_later_list_and_no_list_is_made_twice(centre: Centre) -> None:
    assert centre.catalogue.withdrawals() == (0, b"")
    bundle = release(centre).bundle
    serial, empty = centre.catalogue.withdrawals()
    centre.clock.now += 1000
    assert centre.catalogue.withdrawals() == (serial, empty)
    done = withdraw(centre, bundle, "  trained on\nthe wrong unit ")
    assert done.serial == serial + 1
    assert done.bundle is not None
    assert done.bundle.withdrawn == "trained on the wrong unit"
    again = withdraw(centre, bundle, "another reason")
    assert (again.serial, again.bundle) == (done.serial, done.bundle)
    signed = centre.bundles.get_withdrawals().signed_list
    trusted = frozenset({centre.release_key.fingerprint})
    before, after = read_withdrawals(empty, trusted), read_withdrawals(signed, trusted)
    assert before.entries == ()
    assert newer_of(before, after).find("small-binary-t2", 1) is not None
    centre.restart()
    assert centre.bundles.get_withdrawals().signed_list == signed
    assert release(centre).bundle.version == 2
    assert [action for _, action, _ in actions(centre)].count("bundle.withdraw") == 1


@pytest.mark.parametrize("reason", ["", "  \n", "x" * 501])
def test_a_withdrawal_needs_a_reason_that_clinics_can_read(shared: Centre, reason: str) -> None:
    with pytest.raises(RejectedError, match="reason"):
        withdraw(shared, release(shared).bundle, reason)


def test_a_site_learns_the_fingerprint_of_the_release_key_with_its_first_call(shared: Centre) -> None:
    clinic = shared.enrolled("clinic", tier=3)
    hello = values.HelloRequest(oldest_protocol=1, newest_protocol=1, software_version="1")
    told = shared.federation.hello(clinic.caller, hello).release_key_fingerprint
    assert told == shared.release_key.fingerprint


def test_the_operator_gets_the_card_with_one_version_and_all_rows_without(shared: Centre) -> None:
    bundle = release(shared).bundle
    asked = values.ListReleasedRequest
    one = shared.releases.list_released(asked(name=bundle.name, version=bundle.version))
    assert one.bundles == (bundle,)
    assert one.card == verified(shared, bundle).card()
    assert bundle in shared.releases.list_released(asked()).bundles
    for request in (asked(name="elsewhere-t2"), asked(name=bundle.name, version=999)):
        with pytest.raises(NotFoundError):
            shared.releases.list_released(request)


def test_the_operator_can_still_look_into_a_withdrawn_bundle(centre: Centre) -> None:
    bundle = release(centre).bundle
    withdraw(centre, bundle)
    request = values.DownloadBundleRequest(name=bundle.name, version=bundle.version)
    assert len(b"".join(centre.releases.download(request))) == bundle.size


def survival_state(rounds_done: int, rule: GlobalRule | None) -> StudyState:
    state = new_study("small-survival", quorum=1, rounds=2, seed=1, deadline_seconds=60, sites=["north"])
    return replace(state, phase="complete", rounds_done=rounds_done, rule=rule)


def test_a_survival_model_without_its_baseline_hazard_is_not_released() -> None:
    terms = replace(made.small(made.SURVIVAL).terms, rounds=2)
    plan, regions = terms.plan, {"north": "east"}
    rule = GlobalRule(baseline_grid=(1.0, 2.0, 3.0, 4.0), baseline_cumulative=(0.1, 0.2, 0.2, 0.3))
    state = survival_state(2, rule)
    assert releasable_round(plan, state, None) == 2
    record = StudyRecord(terms, regions, rule=rule)
    baseline = baseline_of(record, 2)
    assert baseline is not None
    assert baseline.cumulative == rule.baseline_cumulative
    assert threshold_of(record, 2) is None
    assert baseline_of(record, 1) is None
    with pytest.raises(StateError, match="no baseline hazard") as refused:
        releasable_round(plan, state, 1)
    assert "last round" in refused.value.hint
    with pytest.raises(StateError, match="no baseline hazard"):
        releasable_round(plan, survival_state(2, GlobalRule()), None)


def test_a_threshold_rule_that_was_not_applied_is_not_passed_off_as_applied() -> None:
    study = made.small(made.BINARY.replace('metric = "auroc"\n', 'metric = "auroc"\n' + YOUDEN))
    rule = GlobalRule(threshold=0.31, threshold_note="by two sites")
    record = StudyRecord(replace(study.terms, rounds=2), {}, rule=rule)
    last, earlier = threshold_of(record, 2), threshold_of(record, 1)
    assert last is not None
    assert earlier is not None
    assert (last.value, last.note) == (0.31, "by two sites")
    assert earlier.value == 0.5
    assert "youden" in earlier.note
    assert "not applied" in earlier.note


def test_inputs_that_no_agent_named_are_named_by_the_plan_or_not_released() -> None:
    plan = made.small().terms.plan
    assert planned_names(plan) == ("age", "lactate", "ward=b", "ward=c", "free")
    block = '[[features]]\nprefix = "drug_"\nkind = "number"\ncolumns = 3\n[model]\n'
    with_block = made.small(made.BINARY.replace("[model]\n", block)).terms.plan
    with pytest.raises(StateError, match="names of the inputs"):
        planned_names(with_block)


def test_a_link_is_not_made_where_it_would_lead_nowhere(centre: Centre) -> None:
    bundle = release(centre).bundle
    request = values.MakeDownloadLinkRequest(bundle.name, bundle.version)
    centre.link_base = ""
    with pytest.raises(StateError, match="downloads over HTTPS are off"):
        centre.releases.make_link(OPERATOR, request)
    centre.link_base = "https://localhost:8444"
    with pytest.raises(RejectedError, match="at most"):
        centre.releases.make_link(OPERATOR, replace(request, valid_hours=24 * 90 + 1))
    withdraw(centre, bundle)
    with pytest.raises(StateError, match="withdrawn"):
        link(centre, bundle)


def test_bundles_of_the_federation_are_listed_with_all_that_a_site_needs(shared: Centre) -> None:
    bundle = release(shared).bundle
    site = shared.enrolled("lister", tier=2)
    listed = {(one.name, one.version): one for one in shared.bundles.list_bundles(site.caller).bundles}[
        bundle.name, bundle.version
    ]
    assert listed == values.Bundle(
        name=bundle.name,
        version=bundle.version,
        file_name=bundle.file_name,
        size=bundle.size,
        sha256=bundle.sha256,
        tier=2,
        title="A small binary study",
        expires_unix_ms=bundle.expires_unix_ms,
        study="small-binary",
        released_unix_ms=bundle.released_unix_ms,
    )
