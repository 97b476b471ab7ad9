"""Files that are no bundle any more, or never were: one flipped bit, and every trick that zip files know."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tracemalloc
import zipfile
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmap.bundles.manifest import ARCHIVE, CALIBRATION, CARD, MANIFEST, MU, PSI, SIGNATURE
from fedmap.bundles.verification import verify_bundle
from fedmap.bundles.writing import prior_parts, write_bundle
from fedmap.errors import FedmapError, IncompatibleError, IntegrityError, LimitError, StorageError
from fedmap.files.stored_zip import Member, ZipReader
from fedmap.trust.signing import new_release_key
from tests.common.bundles.examples import (
    NOW,
    draft_of,
    forge,
    manifest_of,
    pack,
    parts_of,
    released,
    trust_of,
    write_example,
)

MIB = 1 << 20


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def refused(path: Path, key: bytes) -> FedmapError:
    with pytest.raises(FedmapError) as caught:
        verify_bundle(path, trust_of(key), NOW)
    assert caught.value.hint
    return caught.value


def smallest(path: Path, key: bytes) -> Path:
    """All six members, and as few bytes as can be, since a test takes them one by one."""
    made = released()
    draft = draft_of(made, data=None, performance=(), groups=())
    parts = prior_parts(made.plan, made.prior, 2) | {CARD: b"# Card\n", CALIBRATION: b"<svg/>\n"}
    return write_bundle(path, draft, parts, key).path


def test_one_flipped_bit_in_any_byte_is_refused(tmp_path: Path, key: bytes) -> None:
    path = smallest(tmp_path / "x.fedmap", key)
    whole, trust = path.read_bytes(), trust_of(key)
    with path.open("r+b", buffering=0) as file:
        for place, byte in enumerate(whole):
            os.pwrite(file.fileno(), bytes([byte ^ 1 << place % 8]), place)
            with pytest.raises(FedmapError) as caught:
                verify_bundle(path, trust, NOW)
            assert "step" in caught.value.message
            os.pwrite(file.fileno(), bytes([byte]), place)
    assert verify_bundle(path, trust, NOW).sha256 == hashlib.sha256(whole).hexdigest()


@pytest.mark.parametrize("name", list(ARCHIVE.limits))
def test_every_bit_of_a_header_is_looked_at(name: str) -> None:
    member = Member(name, 100, 0x12345678)
    header = member.header()

    def parsed(data: bytes) -> Member:
        return ZipReader(BytesIO(data), ARCHIVE).member(name)

    assert parsed(header) == member
    for place in range(8 * len(header)):
        changed = bytearray(header)
        changed[place // 8] ^= 1 << place % 8
        if 14 <= place // 8 < 18:  # the checksum, which the member's own bytes will contradict
            assert parsed(bytes(changed)).checksum != member.checksum
        else:
            with pytest.raises((IntegrityError, LimitError)):
                parsed(bytes(changed))


@settings(max_examples=150)
@given(data=st.data())
def test_no_splice_of_a_bundle_passes_or_crashes(data: st.DataObject) -> None:
    whole = _WHOLE
    at = data.draw(st.integers(0, len(whole)))
    until = data.draw(st.integers(at, min(len(whole), at + 4000)))
    put = data.draw(
        st.one_of(st.binary(max_size=64), st.just(whole[:at][-300:]), st.just(whole[until:][:300]))
    )
    changed = whole[:at] + put + whole[until:]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.fedmap"
        path.write_bytes(changed)
        if changed == whole:
            verify_bundle(path, trust_of(_KEY), NOW)
        else:
            refused(path, _KEY)


_KEY = new_release_key()


def _whole() -> bytes:
    with TemporaryDirectory() as folder:
        return write_example(Path(folder) / "x.fedmap", _KEY).path.read_bytes()


_WHOLE = _whole()


@pytest.mark.parametrize("size", [0, 1, 30, 43, 500, -22, -1])
def test_file_that_was_cut_short_is_refused(path: Path, key: bytes, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])
    assert isinstance(refused(path, key), IntegrityError)


def test_bytes_after_the_end_are_refused(path: Path, key: bytes) -> None:
    path.write_bytes(path.read_bytes() + b"\0")
    assert "further bytes" in refused(path, key).message


def test_bytes_before_the_start_are_refused(path: Path, key: bytes) -> None:
    path.write_bytes(b"#!/bin/sh\n" + path.read_bytes())  # zip programs open such a file
    assert zipfile.is_zipfile(path)
    assert "step 1, format" in refused(path, key).message


@pytest.mark.parametrize("content", [b"", b"PK\5\6" + bytes(18), b"%PDF-1.7\n" + bytes(100), b"PK\3\4" * 100])
def test_file_of_another_kind_is_refused_as_such(tmp_path: Path, key: bytes, content: bytes) -> None:
    path = tmp_path / "x.fedmap"
    path.write_bytes(content)
    assert "step 1, format" in refused(path, key).message


def test_what_is_no_file_is_refused_at_once(tmp_path: Path, key: bytes) -> None:
    os.mkfifo(tmp_path / "pipe.fedmap")
    assert isinstance(refused(tmp_path / "pipe.fedmap", key), IntegrityError)
    assert isinstance(refused(tmp_path, key), IntegrityError)
    assert isinstance(refused(tmp_path / "missing.fedmap", key), StorageError)


def test_zip_bomb_is_refused_without_unpacking(tmp_path: Path, key: bytes) -> None:
    path = tmp_path / "bomb.fedmap"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(MANIFEST, bytes(16 * MIB))
    assert path.stat().st_size < MIB
    tracemalloc.start()
    try:
        assert "compressed" in refused(path, key).message
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_member_that_claims_more_than_its_limit_is_refused_unread(tmp_path: Path, key: bytes) -> None:
    path = tmp_path / "x.fedmap"
    path.write_bytes(Member(MANIFEST, 0xFFFFFFFF, 0).header())
    error = refused(path, key)
    assert isinstance(error, LimitError)
    assert MANIFEST in error.message


def test_file_beyond_all_limits_is_refused_unread(tmp_path: Path, key: bytes) -> None:
    path = tmp_path / "x.fedmap"
    with path.open("wb") as file:
        file.truncate(ARCHIVE.most_bytes + 1)  # a hole: takes no space
    error = refused(path, key)
    assert isinstance(error, LimitError)
    assert "step 2" in error.message


def test_bundle_packed_again_by_another_program_is_refused(path: Path, key: bytes) -> None:
    inside = members(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        for name, data in inside.items():
            file.writestr(name, data)
    assert "step 1, format" in refused(path, key).message


@pytest.mark.parametrize("name", ["../../etc/cron.d/x", "/etc/passwd", "MANIFEST.JSON", "manifest.json\0"])
def test_member_with_another_name_is_refused_and_nothing_is_written(
    tmp_path: Path, key: bytes, name: str
) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    path = write_example(folder / "x.fedmap", key).path
    inside = members(path)
    renamed = [(name, inside.pop(MANIFEST)), *inside.items()]
    pack(path, renamed)
    assert "step 1, format" in refused(path, key).message
    assert [found.name for found in tmp_path.rglob("*")] == ["home", "x.fedmap"]


def test_traversing_name_inside_a_signed_bundle_is_refused(tmp_path: Path, key: bytes) -> None:
    made = released()
    draft = draft_of(made)
    parts = parts_of(made, draft)
    form = json.loads(manifest_of(draft, parts).to_json())
    form["files"][0]["name"] = "../mu.safetensors"
    written = json.dumps(form, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    path = forge(tmp_path / "x.fedmap", written, {"../" + MU: parts.pop(MU), **parts}, key)
    error = refused(path, key)
    assert isinstance(error, IncompatibleError)
    assert "files.0.name" in error.message


def test_members_twice_missing_in_other_places_or_too_many_are_refused(path: Path, key: bytes) -> None:
    inside = list(members(path).items())
    cases = [[*inside, ("extra.txt", b"hello")]]
    for place, member in enumerate(inside):
        before, after = inside[:place], inside[place + 1 :]
        cases += [
            [*before, member, member, *after],
            [*before, *after],
            [*before, *after[:1], member, *after[1:]],
        ]
    cases.remove(inside)  # the last one has nobody to change places with
    for wrong in cases:
        refused(pack(path, wrong), key)


def test_signed_member_that_is_there_twice_is_refused(tmp_path: Path, key: bytes) -> None:
    made = released()
    draft = draft_of(made)
    parts = parts_of(made, draft)
    manifest = manifest_of(draft, parts)
    twice = manifest.model_copy(update={"files": (manifest.files[0], *manifest.files)})
    path = forge(tmp_path / "x.fedmap", twice.to_json(), parts, key)
    assert "files of its tier" in refused(path, key).message


def test_archive_comment_is_refused(path: Path, key: bytes) -> None:
    with zipfile.ZipFile(path, "a") as file:
        file.comment = b"hidden"
    refused(path, key)


def test_directory_that_says_otherwise_than_the_members_is_refused(path: Path, key: bytes) -> None:
    inside = members(path)
    other = [Member(name, len(data), crc32(data)) for name, data in inside.items()]
    whole = path.read_bytes()
    frame = ARCHIVE.directory(other)
    assert whole.endswith(frame)
    # Readers that trust the directory would see card.md where mu.safetensors is.
    path.write_bytes(whole[: -len(frame)] + frame.replace(b"mu.safetensors", b"mU.safetensors"))
    assert "table of contents" in refused(path, key).message


def signed_with(tmp_path: Path, key: bytes, name: str, data: bytes) -> Path:
    """A bundle, rightly signed, in which one part is something else."""
    made = released()
    draft = draft_of(made)
    parts = parts_of(made, draft) | {name: data}
    return forge(tmp_path / "x.fedmap", manifest_of(draft, parts).to_json(), parts, key)


@pytest.mark.parametrize("name", [MU, PSI])
@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 100 * MIB, 9 * MIB, 1000])
def test_huge_tensor_header_is_refused(tmp_path: Path, key: bytes, name: str, length: int) -> None:
    path = signed_with(tmp_path, key, name, struct.pack("<Q", length) + b"{}" + bytes(100))
    tracemalloc.start()
    try:
        error = refused(path, key)
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()
    assert isinstance(error, IncompatibleError)
    assert "step 9, shapes" in error.message


def test_tensor_header_nested_without_end_is_refused(tmp_path: Path, key: bytes) -> None:
    text = b"[" * 200_000
    path = signed_with(tmp_path, key, MU, struct.pack("<Q", len(text)) + text)
    assert "step 9, shapes" in refused(path, key).message


def test_tensors_that_overlap_or_point_outside_are_refused(tmp_path: Path, key: bytes) -> None:
    good = members(write_example(tmp_path / "good.fedmap", key).path)[MU]
    length = int.from_bytes(good[:8], "little")
    header, values = json.loads(good[8 : 8 + length]), good[8 + length :]
    name = next(iter(header))
    for offsets in ([0, 10**12], [-4, 0], [4, 0], [4, 8]):
        header[name]["data_offsets"] = offsets
        text = json.dumps(header).encode()
        data = struct.pack("<Q", len(text)) + text + values
        assert "step 9, shapes" in refused(signed_with(tmp_path, key, MU, data), key).message


def test_card_or_picture_beyond_its_limit_is_refused(tmp_path: Path, key: bytes) -> None:
    error = refused(signed_with(tmp_path, key, CARD, b"#" * (MIB + 1)), key)
    assert isinstance(error, LimitError)
    assert "step 2, size limits" in error.message


def test_signature_longer_than_any_is_refused(path: Path, key: bytes) -> None:
    pack(path, list((members(path) | {SIGNATURE: b" " * 2000}).items()))
    assert isinstance(refused(path, key), LimitError)
