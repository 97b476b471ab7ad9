"""The list of withdrawn bundles: believed only as it was signed, and never an older one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedmap.bundles import withdrawals
from fedmap.bundles.withdrawals import (
    Withdrawal,
    Withdrawals,
    newer_of,
    read_withdrawals,
    write_withdrawals,
)
from fedmap.errors import (
    FedmapError,
    IncompatibleError,
    IntegrityError,
    LimitError,
    NotAllowedError,
    StateError,
)
from fedmap.trust.signing import fingerprint, new_release_key, public_key_of, signature_of

LIST = Withdrawals(
    serial=3,
    issued_unix_ms=1_767_225_600_000,
    entries=(
        Withdrawal(
            name="tiny-t2",
            version=1,
            reason="wrong unit of creatinine (µmol/l)",
            at_unix_ms=1_767_225_500_000,
        ),
        Withdrawal(name="tiny-t3", version=2, reason="", at_unix_ms=1_767_225_600_000),
    ),
)


def changed(**values: object) -> Withdrawals:
    return LIST.model_copy(update=values)


def trusted(key: bytes) -> frozenset[str]:
    return frozenset({fingerprint(public_key_of(key))})


@pytest.mark.parametrize("listed", [LIST, Withdrawals(serial=1, issued_unix_ms=1_767_225_600_000)])
def test_list_reads_back(key: bytes, listed: Withdrawals) -> None:
    assert read_withdrawals(write_withdrawals(listed, key), trusted(key)) == listed


def test_entries_stand_in_the_order_of_names() -> None:
    assert Withdrawals.model_validate({**dict(LIST), "entries": LIST.entries[::-1]}) == LIST


def test_withdrawal_is_found_by_name_and_version() -> None:
    assert LIST.find("tiny-t2", 1) == LIST.entries[0]
    assert LIST.find("tiny-t2", 2) is None
    assert LIST.find("tiny-t3", 1) is None


def test_no_bit_of_a_list_can_change_unseen(key: bytes) -> None:
    data = write_withdrawals(LIST, key)
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        with pytest.raises(FedmapError):
            read_withdrawals(bytes(changed), trusted(key))


def test_list_signed_by_another_key_is_refused(key: bytes) -> None:
    with pytest.raises(NotAllowedError, match="not trusted"):
        read_withdrawals(write_withdrawals(LIST, new_release_key()), trusted(key))


def test_signature_over_a_bundle_is_none_over_a_list(key: bytes) -> None:
    form = json.loads(write_withdrawals(LIST, key))
    form["signed"] = json.loads(signature_of(key, b"fedmap-bundle-1\n", form["list"].encode()).to_json())
    with pytest.raises(IntegrityError):
        read_withdrawals(json.dumps(form, sort_keys=True, indent=1).encode(), trusted(key))


def test_entry_stands_once() -> None:
    with pytest.raises(ValidationError, match="twice"):
        Withdrawals.model_validate({**dict(LIST), "entries": LIST.entries[:1] * 2})


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b'{"format":2}', IncompatibleError),  # it asks for an update
        pytest.param(b" " * (withdrawals.LIST.most_bytes + 1), LimitError, id="too large to be parsed"),
        *((data, IntegrityError) for data in (b"", b"null", b"[]", b"{}", b'{"list":1}', b"\xff" * 9)),
        (b'{"format":1,"list":"\\ud800","signed":{}}', IntegrityError),
    ],
)
def test_what_is_no_list_is_refused(key: bytes, data: bytes, kind: type[FedmapError]) -> None:
    with pytest.raises(kind):
        read_withdrawals(data, trusted(key))


@given(st.binary(max_size=500))
def test_any_bytes_are_a_typed_refusal_and_no_crash(data: bytes) -> None:
    with pytest.raises(FedmapError):
        read_withdrawals(data, frozenset({"0" * 64}))


def test_older_list_and_another_with_the_same_serial_are_refused() -> None:
    with pytest.raises(StateError, match="older"):
        newer_of(LIST, changed(serial=2))
    with pytest.raises(StateError, match="same serial"):
        newer_of(LIST, changed(entries=LIST.entries[:1]))


def test_newer_or_same_list_is_kept() -> None:
    newer = changed(serial=4)
    assert newer_of(None, LIST) == LIST
    assert newer_of(LIST, LIST) == LIST
    assert newer_of(LIST, newer) == newer
