"""The audit chain: what was done to it shows, and where."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmap.errors import IntegrityError
from fedmap.trust.audit import START, AuditEntry, make_entry, parse_entry, verify_chain

TEXT = st.text(max_size=20)
CONTENT = st.tuples(st.integers(0, 2**53), TEXT, TEXT, TEXT, st.dictionaries(TEXT, TEXT, max_size=3))
Content = tuple[int, str, str, str, dict[str, str]]


def chain(contents: list[Content]) -> list[AuditEntry]:
    entries: list[AuditEntry] = []
    for at, actor, action, subject, detail in contents:
        last = entries[-1] if entries else None
        entries.append(
            make_entry(last, at_unix_ms=at, actor=actor, action=action, subject=subject, detail=detail)
        )
    return entries


def three() -> list[AuditEntry]:
    return chain([(ms, "operator ann", "invite", f"site-{ms}", {"tier": "1"}) for ms in (1, 2, 3)])


def test_an_empty_chain_has_the_start_as_its_head() -> None:
    assert verify_chain([]) == START


def test_the_hash_of_a_known_entry_never_changes() -> None:
    (entry,) = chain([(1, "a", "b", "c", {"k": "v"})])
    assert entry.hash == "90c0a6554891a4e64162989ab2a47e9bffe71fb1ecd4159b2ed80b2d4383b5d4"


@given(st.lists(CONTENT, max_size=6))
def test_an_untouched_chain_verifies_also_after_a_trip_through_json(contents: list[Content]) -> None:
    entries = chain(contents)
    read = [parse_entry(entry.to_json()) for entry in entries]
    assert read == entries
    assert verify_chain(iter(read)) == (entries[-1].hash if entries else START)
    assert all("\n" not in entry.to_json() for entry in entries)


@given(st.lists(CONTENT, min_size=1, max_size=5), st.data())
def test_any_change_to_any_field_is_found_at_that_entry(contents: list[Content], data: st.DataObject) -> None:
    entries = chain(contents)
    place = data.draw(st.integers(0, len(entries) - 1))
    victim = entries[place]
    field = data.draw(
        st.sampled_from(["at_unix_ms", "actor", "action", "subject", "detail", "previous", "hash"])
    )
    if field == "at_unix_ms":
        changed = dataclasses.replace(victim, at_unix_ms=victim.at_unix_ms + 1)
    elif field == "detail":
        changed = dataclasses.replace(victim, detail={**victim.detail, "added key longer than any": ""})
    else:
        changed = dataclasses.replace(victim, **{field: getattr(victim, field) + "x"})
    entries[place] = changed
    with pytest.raises(IntegrityError, match=f"broken at entry {place + 1}:"):
        verify_chain(entries)


@given(st.lists(CONTENT, min_size=2, max_size=6), st.data())
def test_a_removed_entry_is_found_unless_it_was_the_last(
    contents: list[Content], data: st.DataObject
) -> None:
    entries = chain(contents)
    place = data.draw(st.integers(0, len(entries) - 2))
    del entries[place]
    with pytest.raises(IntegrityError, match=f"broken at entry {place + 1}:"):
        verify_chain(entries)


def test_a_cut_off_end_shows_in_the_head_only() -> None:
    entries = three()
    assert verify_chain(entries[:2]) == entries[1].hash != entries[2].hash


def test_an_entry_that_was_put_in_later_is_found() -> None:
    entries = three()
    forged = make_entry(entries[0], at_unix_ms=2, actor="x", action="y", subject="z", detail={})
    with pytest.raises(IntegrityError, match="broken at entry 3: entry 2 stands in its place"):
        verify_chain([entries[0], forged, *entries[1:]])
    with pytest.raises(IntegrityError, match="broken at entry 3: it does not follow"):
        verify_chain([entries[0], forged, entries[2]])


def test_entries_that_changed_places_are_found() -> None:
    first, second, third = three()
    with pytest.raises(IntegrityError, match="broken at entry 2"):
        verify_chain([first, third, second])


def test_fields_cannot_run_into_each_other() -> None:
    one = chain([(1, "ab", "c", "", {})])[0]
    other = chain([(1, "a", "bc", "", {})])[0]
    assert one.hash != other.hash


def test_a_caller_cannot_change_the_detail_afterwards() -> None:
    detail = {"k": "v"}
    entry = make_entry(None, at_unix_ms=1, actor="a", action="b", subject="c", detail=detail)
    detail["k"] = "changed"
    assert verify_chain([entry]) == entry.hash


@pytest.mark.parametrize("field", ["seq", "at_unix_ms", "actor", "detail", "hash", "previous"])
def test_a_line_with_a_missing_or_odd_field_is_refused(field: str) -> None:
    whole = json.loads(three()[0].to_json())
    missing = {key: value for key, value in whole.items() if key != field}
    for broken in (missing, {**whole, field: None}, {**whole, field: [1]}, {**whole, "extra": 1}):
        with pytest.raises(IntegrityError, match="cannot be read"):
            parse_entry(json.dumps(broken))


@pytest.mark.parametrize("line", ["", "{", "[]", "3", "null", "[" * 100_000, '{"detail": {"a": 1}}'])
def test_a_line_that_is_no_entry_is_refused(line: str) -> None:
    with pytest.raises(IntegrityError, match="cannot be read"):
        parse_entry(line)
