"""The nine steps: what a sound bundle passes, and each reason to refuse one that is whole and signed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedmap.bundles.manifest import CALIBRATION, CARD, MU, PSI
from fedmap.bundles.verification import NAMES, VerifiedBundle, against_installed, verify_bundle
from fedmap.bundles.withdrawals import CLOCK_SLACK_MS, Withdrawal, Withdrawals
from fedmap.errors import (
    ConfigError,
    FedmapError,
    IncompatibleError,
    IntegrityError,
    NotAllowedError,
    StateError,
)
from fedmap.shift.reference import Reference
from fedmap.trust.signing import bare_fingerprint, new_release_key
from tests.common.bundles.examples import (
    BINARY,
    EXPIRES,
    NORMED,
    NOW,
    QUADRATIC,
    RELEASED,
    SURVIVAL,
    draft_of,
    forge,
    manifest_of,
    parts_of,
    released,
    trust_of,
    write_example,
)

DAY = 86_400_000


def forged(tmp_path: Path, key: bytes, **changes: Any) -> Path:
    """Signed with the right key although the manifest says something impossible."""
    made = released(changes.pop("plan", BINARY))
    draft = draft_of(made, changes.pop("tier", 2))
    parts = parts_of(made, draft)
    manifest = manifest_of(draft, parts).model_copy(update=changes)
    return forge(tmp_path / "forged.fedmap", manifest.to_json(), parts, key)


def refusal(path: Path, key: bytes, now: int = NOW) -> FedmapError:
    with pytest.raises(FedmapError) as caught:
        verify_bundle(path, trust_of(key), now)
    assert caught.value.message.startswith(f"{path.name}: step ")
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("plan", [BINARY, NORMED, QUADRATIC, SURVIVAL], ids=lambda plan: str(plan.study.name))
@pytest.mark.parametrize("tier", [2, 3])
def test_sound_bundle_passes_all_nine_steps(tmp_path: Path, key: bytes, plan: Any, tier: Any) -> None:
    made = write_example(tmp_path / "x.fedmap", key, tier, made=released(plan))
    bundle = verify_bundle(made.path, trust_of(key), NOW)
    assert [(step.number, step.name) for step in bundle.steps] == list(NAMES.items())
    assert all(step.finding for step in bundle.steps)
    assert bundle.manifest == made.manifest
    assert bundle.sha256 == hashlib.sha256(made.path.read_bytes()).hexdigest() == made.sha256
    assert bundle.size == made.path.stat().st_size == made.size
    assert bundle.key_fingerprint in trust_of(key).fingerprints
    assert bundle.terms().plan == plan
    assert (PSI in bundle.offsets) == (tier == 2)


def test_fingerprint_may_be_typed_in_any_spelling(path: Path, key: bytes) -> None:
    (shown,) = trust_of(key).fingerprints
    for typed in (bare_fingerprint(shown), shown.lower().replace(":", " ")):
        assert verify_bundle(path, replace(trust_of(key), fingerprints=frozenset({typed})), NOW)
    with pytest.raises(ConfigError):
        verify_bundle(path, replace(trust_of(key), fingerprints=frozenset({"SHA256:12"})), NOW)


def test_card_and_picture_are_those_of_the_release(tmp_path: Path, key: bytes) -> None:
    bundle = verify_bundle(write_example(tmp_path / "x.fedmap", key).path, trust_of(key), NOW)
    assert bundle.card().startswith("# A tiny study")
    picture = bundle.calibration_picture()
    assert picture is not None
    assert picture.startswith(b"<svg")


def test_release_without_calibration_has_no_picture(tmp_path: Path, key: bytes) -> None:
    bundle = verify_bundle(write_example(tmp_path / "x.fedmap", key, calibration=()).path, trust_of(key), NOW)
    assert CALIBRATION not in bundle.offsets
    assert bundle.calibration_picture() is None


# (3) digests


@pytest.mark.parametrize("name", [MU, PSI, CARD, CALIBRATION])
def test_part_exchanged_for_another_of_the_same_size_is_refused(
    tmp_path: Path, key: bytes, name: str
) -> None:
    made = released()
    draft = draft_of(made)
    parts = parts_of(made, draft)
    written = manifest_of(draft, parts).to_json()
    exchanged = parts | {name: parts[name][:-9] + bytes(9)}
    error = refusal(forge(tmp_path / "x.fedmap", written, exchanged, key), key)
    assert isinstance(error, IntegrityError)
    assert "step 3, digests" in error.message
    assert name in error.message


# (4) signature


def test_bundle_signed_by_another_key_is_refused(tmp_path: Path, key: bytes) -> None:
    path = write_example(tmp_path / "x.fedmap", new_release_key()).path
    error = refusal(path, key)
    assert isinstance(error, NotAllowedError)
    assert "step 4, signature" in error.message
    assert "paper" in error.hint


def test_bundle_is_refused_where_no_key_is_trusted(path: Path, key: bytes) -> None:
    with pytest.raises(NotAllowedError, match="no release key is trusted"):
        verify_bundle(path, replace(trust_of(key), fingerprints=frozenset()), NOW)


def test_manifest_of_one_bundle_with_the_signature_of_another_is_refused(tmp_path: Path, key: bytes) -> None:
    made = released()
    parts = parts_of(made, draft_of(made))
    first = manifest_of(draft_of(made), parts).to_json()
    second = manifest_of(draft_of(made, version=2), parts).to_json()
    path = forge(tmp_path / "x.fedmap", first, parts, key)
    other = forge(tmp_path / "y.fedmap", second, parts, key)
    whole = path.read_bytes()
    start = whole.index(b'{"format":1,"key"')
    signature = other.read_bytes()[start:]
    length = signature.index(b"PK\3\4")
    mixed = whole[:start] + signature[:length] + whole[start + length :]
    path.write_bytes(mixed)
    refusal(path, key)


def test_unsigned_manifest_is_never_parsed(tmp_path: Path, key: bytes) -> None:
    path = forge(tmp_path / "x.fedmap", b"[" * 1_000_000, {}, new_release_key())
    assert "step 4, signature" in refusal(path, key).message


# (1) the manifest


@pytest.mark.parametrize(
    "written",
    [b"", b"null", b"[" * 100_000, b'{"format":2}', b'{"format":1,"name":"x"}', b"\xff\xfe"],
)
def test_signed_manifest_of_another_version_asks_for_an_update(
    tmp_path: Path, key: bytes, written: bytes
) -> None:
    error = refusal(forge(tmp_path / "x.fedmap", written, {}, key), key)
    assert isinstance(error, IncompatibleError)
    assert "step 1, format" in error.message
    assert "Update" in error.hint


def test_signed_manifest_with_a_key_twice_is_refused(tmp_path: Path, key: bytes) -> None:
    made = released()
    draft = draft_of(made)
    parts = parts_of(made, draft)
    written = manifest_of(draft, parts).to_json()
    twice = written[:-1] + b',"version":7}'
    error = refusal(forge(tmp_path / "x.fedmap", twice, parts, key), key)
    assert "canonical" in error.message


def test_name_that_is_not_that_of_study_and_tier_is_refused(tmp_path: Path, key: bytes) -> None:
    assert "its name" in refusal(forged(tmp_path, key, name="other-t2"), key).message
    assert "its name" in refusal(forged(tmp_path, key, name="tiny-t3"), key).message


def test_tier_without_its_files_is_refused(tmp_path: Path, key: bytes) -> None:
    path = forged(tmp_path, key, tier=3)
    assert verify_bundle(path, trust_of(key), NOW)
    made = released()
    t3 = draft_of(made, 3)
    with_psi = parts_of(made, draft_of(made, 2))
    path = forge(tmp_path / "x.fedmap", manifest_of(t3, with_psi).to_json(), with_psi, key)
    assert "files of its tier" in refusal(path, key).message
    t2 = draft_of(made, 2)
    without = parts_of(made, t3)
    path = forge(tmp_path / "x.fedmap", manifest_of(t2, without).to_json(), without, key)
    assert "files of its tier" in refusal(path, key).message


# (5) expiry


@pytest.mark.parametrize("now", [EXPIRES, EXPIRES + 1, EXPIRES + 400 * DAY])
def test_expired_bundle_is_refused(tmp_path: Path, key: bytes, now: int) -> None:
    error = refusal(write_example(tmp_path / "x.fedmap", key).path, key, now)
    assert isinstance(error, StateError)
    assert "step 5, expiry: it expired on 2027-01-01" in error.message


def test_bundle_is_good_up_to_its_last_moment(path: Path, key: bytes) -> None:
    assert verify_bundle(path, trust_of(key), EXPIRES - 1)


def test_bundle_from_the_future_is_refused_beyond_the_slack_of_clocks(path: Path, key: bytes) -> None:
    assert verify_bundle(path, trust_of(key), RELEASED - CLOCK_SLACK_MS)
    error = refusal(path, key, RELEASED - CLOCK_SLACK_MS - 1)
    assert isinstance(error, StateError)
    assert "clock" in error.hint


def test_bundle_that_expires_before_its_release_is_refused(tmp_path: Path, key: bytes) -> None:
    path = forged(tmp_path, key, expires_unix_ms=RELEASED)
    assert "step 1" in refusal(path, key, RELEASED - 1000).message


# (6) withdrawal


def withdrawn(name: str, version: int, reason: str = "") -> Withdrawals:
    entry = Withdrawal(name=name, version=version, reason=reason, at_unix_ms=NOW)
    return Withdrawals(serial=2, issued_unix_ms=NOW, entries=(entry,))


def test_withdrawn_bundle_is_refused_with_the_reason(path: Path, key: bytes) -> None:
    listed = withdrawn("tiny-t2", 1, "wrong unit of age")
    with pytest.raises(StateError, match=r"step 6, withdrawal list: .*wrong unit of age"):
        verify_bundle(path, replace(trust_of(key), withdrawals=listed), NOW)


@pytest.mark.parametrize("entry", [("tiny-t2", 2), ("tiny-t3", 1), ("other-t2", 1)])
def test_withdrawal_of_another_bundle_does_not_count(path: Path, key: bytes, entry: tuple[str, int]) -> None:
    listed = withdrawn(*entry)
    bundle = verify_bundle(path, replace(trust_of(key), withdrawals=listed), NOW)
    assert bundle.steps[5].finding == "not on list 2 of 2026-01-02"


def test_missing_list_of_withdrawals_is_said_and_not_hidden(tmp_path: Path, key: bytes) -> None:
    bundle = verify_bundle(write_example(tmp_path / "x.fedmap", key).path, trust_of(key), NOW)
    assert "no list of withdrawn bundles is known" in bundle.steps[5].finding


# (7) no rollback


def test_older_version_than_installed_is_refused(tmp_path: Path, key: bytes) -> None:
    path = write_example(tmp_path / "x.fedmap", key, version=2).path
    trust = trust_of(key)
    for installed in (None, 1, 2):
        assert verify_bundle(path, replace(trust, installed_version=installed), NOW)
    with pytest.raises(StateError, match=r"step 7, no rollback: it is version 2, and version 3"):
        verify_bundle(path, replace(trust, installed_version=3), NOW)


def test_rollback_can_be_asked_once_the_name_is_known(tmp_path: Path, key: bytes) -> None:
    bundle = verify_bundle(write_example(tmp_path / "x.fedmap", key, version=2).path, trust_of(key), NOW)
    assert against_installed(bundle, 1).steps[6].finding == "version 2; the highest installed before is 1"
    with pytest.raises(StateError, match="step 7"):
        against_installed(bundle, 3)


# (8) model and terms


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "transformer_of_the_future"},
        {"model": "mlp"},
        {"terms_json": "{}"},
        {"terms_json": "not json"},
        {"terms_digest": "0" * 64},
        {"plan_digest": "0" * 64},
        {"study": "other", "name": "other-t2"},
    ],
)
def test_model_or_terms_that_do_not_fit_are_refused(
    tmp_path: Path, key: bytes, changes: dict[str, Any]
) -> None:
    error = refusal(forged(tmp_path, key, **changes), key)
    assert isinstance(error, IncompatibleError)
    assert "step 8, model" in error.message


def test_plan_of_a_later_version_is_refused(tmp_path: Path, key: bytes) -> None:
    form = json.loads(draft_of(released()).terms_json)
    form["plan"]["model"]["name"] = "transformer"
    terms = json.dumps(form, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(terms.encode()).hexdigest()
    path = forged(tmp_path, key, terms_json=terms, terms_digest=digest)
    assert "step 8, model" in refusal(path, key).message


# (9) shapes


def test_tensors_of_another_model_are_refused(tmp_path: Path, key: bytes) -> None:
    made, other = released(BINARY), released(NORMED)
    draft = draft_of(made)
    for name in (MU, PSI):
        parts = parts_of(made, draft) | {name: parts_of(other, draft_of(other))[name]}
        path = forge(tmp_path / "x.fedmap", manifest_of(draft, parts).to_json(), parts, key)
        error = refusal(path, key)
        assert isinstance(error, IncompatibleError)
        assert f"step 9, shapes: {name}" in error.message


def test_tables_that_do_not_fit_the_model_are_refused(tmp_path: Path, key: bytes) -> None:
    draft = draft_of(released())
    survival = draft_of(released(SURVIVAL))
    reference = Reference.model_construct(sites=3, rows=100, freedom=2.0, inputs=(), joint=None)
    assert survival.baseline is not None
    falling = survival.baseline.model_copy(update={"cumulative": survival.baseline.cumulative[::-1]})
    other_grid = survival.baseline.model_copy(update={"grid": tuple(range(1, 11))[::-1]})
    wrong: list[dict[str, Any]] = [
        {"inputs": draft.inputs[:-1]},
        {"inputs": draft.inputs[:1] * 2},
        {"scaler": draft.scaler.model_copy(update={"mean": draft.scaler.mean[:-1]})},
        {"scaler": draft.scaler.model_copy(update={"deviation": (*draft.scaler.deviation, 1.0)})},
        {"reference": reference},
        {"baseline": survival.baseline},
        {"plan": SURVIVAL, "threshold": draft.threshold},
        {"plan": SURVIVAL, "baseline": falling},
        {"plan": SURVIVAL, "baseline": other_grid},
    ]
    for changes in wrong:
        error = refusal(forged(tmp_path, key, **changes), key)
        assert isinstance(error, IncompatibleError)
        assert "step 9, shapes" in error.message


# After verification


def test_file_exchanged_after_verification_is_not_read(path: Path, key: bytes) -> None:
    bundle: VerifiedBundle = verify_bundle(path, trust_of(key), NOW)
    write_example(path, new_release_key(), made=released(seed=2))
    with pytest.raises(IntegrityError, match="changed after it was verified"):
        bundle.part(MU)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(IntegrityError, match="changed after it was verified"):
        bundle.card()


def test_verification_leaves_the_random_state_alone(path: Path, key: bytes) -> None:
    before = torch.get_rng_state()
    verify_bundle(path, trust_of(key), NOW)
    assert torch.equal(before, torch.get_rng_state())
