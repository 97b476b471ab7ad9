"""Writing: the same release gives the same bytes, in one piece or not at all, with little memory."""

from __future__ import annotations

import hashlib
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmap.algorithm.pooling.statistics import Scaler
from fedmap.bundles.manifest import CALIBRATION, CARD, MANIFEST, MU, PSI, SIGNATURE
from fedmap.bundles.verification import verify_bundle
from fedmap.bundles.writing import scaler_values, write_bundle
from fedmap.errors import FedmapError, IncompatibleError, LimitError, StorageError
from fedmap.study.plan.reading import parse_plan
from tests import plans
from tests.common.bundles.examples import (
    NOW,
    SURVIVAL,
    draft_of,
    parts_of,
    released,
    trust_of,
    write_example,
)

_LARGE = plans.plan_text(
    "large",
    plans.binary("outcome"),
    plans.number("age"),
    model=plans.mlp(2000, 4000),
    prior={"convex": False},
)
MIB = 1 << 20


def test_same_release_gives_the_same_bytes(tmp_path: Path, key: bytes) -> None:
    one = write_example(tmp_path / "one.fedmap", key)
    two = write_example(tmp_path / "two.fedmap", key)
    assert one.path.read_bytes() == two.path.read_bytes()
    assert one.sha256 == two.sha256 == hashlib.sha256(one.path.read_bytes()).hexdigest()
    assert one.size == one.path.stat().st_size


def test_any_zip_program_opens_a_bundle(tmp_path: Path, key: bytes) -> None:
    path = write_example(tmp_path / "x.fedmap", key).path
    with zipfile.ZipFile(path) as file:
        assert file.testzip() is None
        assert file.namelist() == [MANIFEST, SIGNATURE, MU, PSI, CARD, CALIBRATION]
        assert {info.compress_type for info in file.infolist()} == {zipfile.ZIP_STORED}
        assert {info.date_time for info in file.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_parts_may_be_files(tmp_path: Path, key: bytes) -> None:
    made = released(SURVIVAL)
    draft = draft_of(made)
    parts = parts_of(made, draft)
    files: dict[str, bytes | Path] = {}
    for name, data in parts.items():
        files[name] = tmp_path / name
        (tmp_path / name).write_bytes(data)
    from_files = write_bundle(tmp_path / "files.fedmap", draft, files, key)
    assert from_files.sha256 == write_bundle(tmp_path / "bytes.fedmap", draft, parts, key).sha256


def test_release_that_verification_would_refuse_gets_no_file(tmp_path: Path, key: bytes) -> None:
    target = tmp_path / "x.fedmap"
    before = write_example(target, key).sha256
    made = released()
    draft = draft_of(made)
    parts = parts_of(made, draft)
    wrong_parts = [
        {name: data for name, data in parts.items() if name != PSI},
        {name: data for name, data in parts.items() if name != CARD},
        parts | {MU: parts[PSI]},
    ]
    for wrong in wrong_parts:
        with pytest.raises(IncompatibleError, match=r"^x\.fedmap: step "):
            write_bundle(target, draft, wrong, key)
    with pytest.raises(IncompatibleError, match="step 8"):
        write_bundle(target, draft_of(made, terms_digest="0" * 64), parts, key)
    assert hashlib.sha256(target.read_bytes()).hexdigest() == before
    assert [path.name for path in tmp_path.iterdir()] == ["x.fedmap"]


def test_part_beyond_its_limit_is_refused(tmp_path: Path, key: bytes) -> None:
    made = released()
    draft = draft_of(made)
    with pytest.raises(LimitError, match=r"card\.md"):
        write_bundle(tmp_path / "x.fedmap", draft, parts_of(made, draft) | {CARD: bytes(MIB + 1)}, key)


def test_part_that_cannot_be_read_leaves_nothing(tmp_path: Path, key: bytes) -> None:
    made = released()
    draft = draft_of(made)
    with pytest.raises(StorageError):
        write_bundle(tmp_path / "x.fedmap", draft, parts_of(made, draft) | {MU: tmp_path / "not-there"}, key)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../evil", MANIFEST, SIGNATURE])
def test_part_with_another_name_is_a_mistake(tmp_path: Path, key: bytes, name: str) -> None:
    made = released()
    draft = draft_of(made)
    with pytest.raises(ValueError, match="no part"):
        write_bundle(tmp_path / "x.fedmap", draft, parts_of(made, draft) | {name: b"x"}, key)


def test_large_part_is_never_in_memory_as_a_whole(tmp_path: Path, key: bytes) -> None:
    made = released(parse_plan(_LARGE, "large"))
    draft = draft_of(made, 3)
    parts: dict[str, bytes | Path] = dict(parts_of(made, draft))
    (tmp_path / MU).write_bytes(parts_of(made, draft)[MU])
    parts[MU] = tmp_path / MU
    assert (tmp_path / MU).stat().st_size > 30 * MIB
    tracemalloc.start()
    try:
        written = write_bundle(tmp_path / "x.fedmap", draft, parts, key)
        verified = verify_bundle(written.path, trust_of(key), NOW)
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()
    whole = written.path.read_bytes()
    assert verified.sha256 == written.sha256 == hashlib.sha256(whole).hexdigest()
    place = 17 * MIB + 3  # one flipped bit deep inside is found
    written.path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
    with pytest.raises(FedmapError, match=r"step 3, digests: mu\.safetensors"):
        verify_bundle(written.path, trust_of(key), NOW)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_scaler_reads_back_bit_for_bit(means: list[float]) -> None:
    mean = torch.tensor(means, dtype=torch.float32)
    values = scaler_values(Scaler(mean, torch.ones_like(mean)))
    again = np.array(values.mean, dtype=np.float32)
    assert again.tobytes() == mean.numpy().tobytes()
