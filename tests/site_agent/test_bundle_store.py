"""Bundles on a clinic's disk: what is refused leaves no trace, and what was installed before still works."""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fedmap.bundles.loading import load_shared
from fedmap.bundles.manifest import split_reference
from fedmap.bundles.verification import VerifiedBundle, verify_bundle
from fedmap.errors import (
    ConfigError,
    ConflictError,
    FedmapError,
    IncompatibleError,
    IntegrityError,
    LimitError,
    NotAllowedError,
    NotFoundError,
    StateError,
    StorageError,
)
from fedmap_site.bundles import store as bundle_store
from fedmap_site.bundles.store import BundleStore
from fedmap_site.cli.options import refuse_if_withdrawn
from tests.common.bundles.examples import NOW
from tests.forked_programs import run_forked
from tests.site_agent.bundle_shelf import DAY_MS, Releases, entries_of, tree


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    return Releases(tmp_path / "releases")


@pytest.fixture
def store(tmp_path: Path) -> BundleStore:
    return BundleStore(tmp_path / "store")


@pytest.fixture
def furnished(store: BundleStore, releases: Releases) -> BundleStore:
    """Version 2 is installed."""
    store.install(releases.bundle(2), releases.fingerprint, NOW)
    return store


def test_a_bundle_is_installed_with_the_key_on_paper_and_opens_by_name_number_and_file(
    store: BundleStore, releases: Releases
) -> None:
    file = releases.bundle(1)
    written = releases.fingerprint.replace(":", " ").lower().replace("sha256", "SHA-256:")
    entry = store.install(file, written, NOW)
    assert (entry.name, entry.version, entry.tier) == ("tiny-t2", 1, 2)
    for reference in ("tiny-t2", "tiny-t2-1", str(file), file):
        opened = store.open(reference, NOW)
        assert opened.sha256 == entry.sha256
        assert load_shared(opened).model.network.inputs > 0
    assert store.open("tiny-t2", NOW).path == store.path_of(entry)
    assert store.path_of(entry).read_bytes() == file.read_bytes()


def test_what_is_done_to_the_store_is_in_its_audit_log(store: BundleStore, releases: Releases) -> None:
    store.install(releases.bundle(1), releases.fingerprint, NOW)
    store.accept_withdrawals(releases.withdraw(7))
    store.remove("tiny-t2")
    store.forget_key(releases.fingerprint)
    assert [(entry.action, entry.subject) for entry in entries_of(store)] == [
        ("bundle.key_trusted", releases.fingerprint),
        ("bundle.installed", "tiny-t2-1"),
        ("bundle.withdrawals_received", "1"),
        ("bundle.removed", "tiny-t2-1"),
        ("bundle.key_forgotten", releases.fingerprint),
    ]


def test_an_enrolled_site_records_in_its_own_audit_log(tmp_path: Path, releases: Releases) -> None:
    store = BundleStore(tmp_path / "store", tmp_path / "state" / "audit.jsonl")
    store.install(releases.bundle(1), releases.fingerprint, NOW)
    assert "bundle.installed" in (tmp_path / "state" / "audit.jsonl").read_text()
    assert not (store.folder / "audit.jsonl").exists()


# Bad input: each is refused with its step and a hint, nothing is half installed, the old bundle works


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def begin(data: bytes, name: str) -> int:
    """Where the bytes of a member begin."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.getinfo(name).header_offset + 30 + len(name)


def rezipped(data: bytes, change: Callable[[zipfile.ZipFile], None]) -> bytes:
    """The same members written by an ordinary zip program, and one more thing."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for member in old.infolist():
            new.writestr(member, old.read(member))
        change(new)
    return out.getvalue()


def bomb(new: zipfile.ZipFile) -> None:
    new.writestr(zipfile.ZipInfo("mu.safetensors"), b"\0" * 50_000_000, zipfile.ZIP_DEFLATED)


def huge_header(data: bytes) -> bytes:
    """A tensor header that announces 2^60 bytes, where the tensors begin."""
    at = begin(data, "mu.safetensors")
    return data[:at] + struct.pack("<Q", 1 << 60) + data[at + 8 :]


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda _: b"", id="an empty file"),
        pytest.param(lambda data: data[: len(data) // 2], id="half a file"),
        pytest.param(lambda data: data + b"\0", id="one byte more"),
        pytest.param(lambda data: flipped(data, 9), id="a bit of the frame"),
        pytest.param(lambda data: flipped(data, 200), id="a bit of the manifest"),
        pytest.param(
            lambda data: flipped(data, data.index(b'"signature"') + 30), id="a bit of the signature"
        ),
        pytest.param(lambda data: flipped(data, begin(data, "mu.safetensors") + 50), id="a bit of mu"),
        pytest.param(lambda data: flipped(data, len(data) - 3), id="a bit of the end"),
        pytest.param(huge_header, id="a huge tensor header"),
        pytest.param(lambda data: rezipped(data, lambda new: new.writestr("../../x", "x")), id="a path"),
        pytest.param(
            lambda data: rezipped(data, lambda new: new.writestr("card.md", "x")), id="a name twice"
        ),
        pytest.param(lambda data: rezipped(data, bomb), id="a zip bomb"),
        pytest.param(lambda _: b"PK\x03\x04" + os.urandom(500), id="noise"),
        pytest.param(lambda _: json.dumps({"model": "mine"}).encode(), id="another kind of file"),
    ],
)
def test_a_damaged_or_hostile_file_is_refused_and_the_installed_one_still_works(
    furnished: BundleStore, releases: Releases, tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    before = tree(furnished.folder)
    bad = tmp_path / "tiny-t2-3.fedmap"
    bad.write_bytes(spoil(releases.bundle(3).read_bytes()))
    with pytest.raises((IntegrityError, LimitError, IncompatibleError)) as refused:
        furnished.install(bad, None, NOW)
    assert "step" in refused.value.message
    assert refused.value.hint
    assert tree(furnished.folder) == before
    assert furnished.open("tiny-t2", NOW).manifest.version == 2


@pytest.mark.parametrize(
    ("refusal", "kind", "step"),
    [
        ("another key", NotAllowedError, "step 4"),
        ("expired", StateError, "step 5"),
        ("from the future", StateError, "step 5"),
        ("withdrawn", StateError, "step 6"),
        ("older", StateError, "step 7"),
    ],
)
def test_a_sound_file_that_must_not_be_used_is_refused_and_the_installed_one_still_works(
    furnished: BundleStore,
    releases: Releases,
    tmp_path: Path,
    refusal: str,
    kind: type[FedmapError],
    step: str,
) -> None:
    when = NOW
    if refusal == "another key":
        bad = Releases(tmp_path / "strangers").bundle(3)
    elif refusal == "expired":
        bad = releases.bundle(3, days=-1)
    elif refusal == "from the future":
        bad, when = releases.bundle(3), NOW - 150 * DAY_MS
    elif refusal == "withdrawn":
        furnished.accept_withdrawals(releases.withdraw(3))
        bad = releases.bundle(3)
    else:
        bad = releases.bundle(1)
    before = tree(furnished.folder)
    with pytest.raises(kind, match=step) as refused:
        furnished.install(bad, None, when)
    assert refused.value.hint
    assert tree(furnished.folder) == before
    assert furnished.open("tiny-t2", NOW).manifest.version == 2


def test_an_older_version_stays_refused_after_the_newer_one_was_removed(
    furnished: BundleStore, releases: Releases
) -> None:
    furnished.remove("tiny-t2", 2)
    with pytest.raises(StateError, match="step 7"):
        furnished.install(releases.bundle(1), None, NOW)
    with pytest.raises(StateError, match="step 7"):
        furnished.open(releases.bundle(1), NOW)
    assert furnished.install(releases.bundle(2), None, NOW).version == 2


def test_another_file_under_an_installed_number_is_refused_even_if_it_is_signed(
    furnished: BundleStore, releases: Releases
) -> None:
    before = tree(furnished.folder)
    with pytest.raises(ConflictError):
        furnished.install(releases.bundle(2, seed=9, name="other.fedmap"), None, NOW)
    assert tree(furnished.folder) == before
    furnished.remove("tiny-t2")
    with pytest.raises(ConflictError):
        furnished.install(releases.bundle(2, seed=9, name="other.fedmap"), None, NOW)


@pytest.mark.parametrize("swapped_for", ["an older one", "rubbish"])
def test_a_file_exchanged_after_it_was_verified_is_not_installed(
    furnished: BundleStore, releases: Releases, monkeypatch: pytest.MonkeyPatch, swapped_for: str
) -> None:
    file, old = releases.bundle(version=8), releases.bundle(version=1, name="old.fedmap").read_bytes()
    calls: list[Path] = []

    def verify_and_swap(path: Path, *arguments: Any, **named: Any) -> VerifiedBundle:
        verified = verify_bundle(path, *arguments, **named)
        if not calls:
            file.write_bytes(old if swapped_for == "an older one" else b"x" * len(old))
        calls.append(path)
        return verified

    monkeypatch.setattr(bundle_store, "verify_bundle", verify_and_swap)
    before = furnished.installed()
    with pytest.raises(FedmapError):
        furnished.install(file, None, NOW)
    assert calls[0] == file
    assert furnished.installed() == before
    assert furnished.open("tiny-t2", NOW).manifest.version == before[-1].version


def test_a_name_alone_does_not_fall_back_to_an_older_version(
    furnished: BundleStore, releases: Releases
) -> None:
    older = furnished.find("tiny-t2")
    furnished.install(releases.bundle(version=older.version + 1), None, NOW)
    furnished.remove("tiny-t2", older.version + 1)
    with pytest.raises(StateError, match="newest version"):
        furnished.open("tiny-t2", NOW)
    assert furnished.open(older.reference, NOW).manifest.version == older.version


def test_a_model_that_is_withdrawn_while_it_is_served_is_refused(
    furnished: BundleStore, releases: Releases
) -> None:
    refuse_if_withdrawn(furnished, "tiny-t2-2")
    furnished.accept_withdrawals(releases.withdraw(2))
    with pytest.raises(StateError, match="it was wrong"):
        refuse_if_withdrawn(furnished, "tiny-t2-2")
    refuse_if_withdrawn(furnished, "tiny-t2-3")


def test_rollback_is_judged_per_name(furnished: BundleStore, releases: Releases) -> None:
    furnished.install(releases.bundle(1, tier=3), None, NOW)
    assert [entry.reference for entry in furnished.installed()] == ["tiny-t2-2", "tiny-t3-1"]


def test_a_newer_version_leaves_the_older_one_where_it_is(furnished: BundleStore, releases: Releases) -> None:
    furnished.install(releases.bundle(3), None, NOW)
    assert furnished.open("tiny-t2", NOW).manifest.version == 3
    assert furnished.open("tiny-t2-2", NOW).manifest.version == 2
    assert len(furnished.installed()) == 2


def test_installing_the_same_file_again_changes_nothing_but_its_date(
    furnished: BundleStore, releases: Releases
) -> None:
    again = furnished.install(releases.bundle(2), None, NOW + 1)
    assert [entry.sha256 for entry in furnished.installed()] == [again.sha256]


def test_installing_again_repairs_a_damaged_copy(furnished: BundleStore, releases: Releases) -> None:
    path = furnished.path_of(furnished.find("tiny-t2"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(IntegrityError):
        furnished.open("tiny-t2", NOW)
    furnished.install(releases.bundle(2), None, NOW)
    assert furnished.open("tiny-t2", NOW).manifest.version == 2


# What is used is verified again


def test_an_installed_bundle_that_expires_or_is_withdrawn_is_not_opened_any_more(
    furnished: BundleStore, releases: Releases
) -> None:
    entry = furnished.find("tiny-t2")
    assert furnished.standing(entry, NOW) == ("ready", "")
    assert furnished.standing(entry, NOW + 91 * DAY_MS)[0] == "expired"
    with pytest.raises(StateError, match=r"tiny-t2-2\.fedmap: step 5"):
        furnished.open("tiny-t2", NOW + 91 * DAY_MS)
    furnished.accept_withdrawals(releases.withdraw(2))
    assert furnished.standing(entry, NOW) == ("withdrawn", "it was wrong")
    with pytest.raises(StateError, match="it was wrong"):
        furnished.open("tiny-t2", NOW)


def test_a_file_put_in_the_place_of_an_installed_one_is_not_opened(
    furnished: BundleStore, releases: Releases
) -> None:
    path = furnished.path_of(furnished.find("tiny-t2"))
    path.write_bytes(releases.bundle(3).read_bytes())  # signed by the same key, and newer
    with pytest.raises(IntegrityError, match="not the file that was installed"):
        furnished.open("tiny-t2", NOW)


def test_a_bundle_whose_key_was_forgotten_is_not_opened(furnished: BundleStore, releases: Releases) -> None:
    furnished.forget_key(releases.fingerprint)
    with pytest.raises(NotAllowedError, match="no release key is trusted"):
        furnished.open("tiny-t2", NOW)
    assert furnished.open("tiny-t2", NOW, releases.fingerprint).manifest.version == 2


def test_what_is_not_installed_is_not_found(furnished: BundleStore) -> None:
    for reference in ("tiny-t3", "tiny-t2-7"):
        with pytest.raises(NotFoundError):
            furnished.open(reference, NOW)
    with pytest.raises(StorageError):
        furnished.open("no/such/file.fedmap", NOW)


def test_a_damaged_record_is_told_and_not_guessed_at(furnished: BundleStore) -> None:
    (furnished.folder / "bundles" / "tiny-t2" / "record.json").write_text('{"highest": ')
    with pytest.raises(IntegrityError, match="damaged"):
        furnished.open("tiny-t2", NOW)


# Keys


def test_without_a_key_nothing_is_believed(store: BundleStore, releases: Releases) -> None:
    with pytest.raises(NotAllowedError, match="no release key is trusted") as refused:
        store.install(releases.bundle(1), None, NOW)
    assert "--fingerprint" in refused.value.hint
    assert store.installed() == ()


def test_a_mistyped_fingerprint_is_neither_believed_nor_pinned(
    store: BundleStore, releases: Releases
) -> None:
    digit = "0" if releases.fingerprint[-1] != "0" else "1"
    with pytest.raises(NotAllowedError, match="step 4"):
        store.install(releases.bundle(1), releases.fingerprint[:-1] + digit, NOW)
    with pytest.raises(ConfigError, match="64 digits"):
        store.install(releases.bundle(1), releases.fingerprint[:-1], NOW)
    assert store.trust.trusted() == ()
    assert store.installed() == ()


def test_a_second_key_needs_a_persons_word(
    furnished: BundleStore, releases: Releases, tmp_path: Path
) -> None:
    others = Releases(tmp_path / "others")
    file = others.bundle(1, tier=3)
    with pytest.raises(NotAllowedError, match="another release key") as refused:
        furnished.install(file, others.fingerprint, NOW)
    assert "--trust-new-key" in refused.value.hint
    with pytest.raises(NotAllowedError, match="another release key"):
        furnished.pin_key(others.fingerprint, "the aggregator", NOW)
    furnished.install(file, others.fingerprint, NOW, trust_new_key=True)
    assert len(furnished.trust.trusted()) == 2
    assert furnished.open("tiny-t2", NOW).key_fingerprint == releases.fingerprint
    assert furnished.open("tiny-t3", NOW).key_fingerprint == others.fingerprint


def test_a_key_pinned_twice_is_pinned_once(store: BundleStore, releases: Releases) -> None:
    assert store.pin_key(releases.fingerprint, "the aggregator", NOW)
    assert not store.pin_key(releases.fingerprint.lower(), "on paper", NOW)
    (key,) = store.trust.trusted()
    assert key.source == "the aggregator"


def test_a_damaged_file_of_keys_is_told(furnished: BundleStore) -> None:
    (furnished.folder / "trust.json").write_text("[]")
    with pytest.raises(IntegrityError, match=r"trust\.json"):
        furnished.open("tiny-t2", NOW)


# Withdrawals


def test_an_older_list_of_withdrawals_cannot_hide_a_withdrawal(
    furnished: BundleStore, releases: Releases
) -> None:
    furnished.accept_withdrawals(releases.withdraw(2, serial=5))
    with pytest.raises(StateError, match="serial"):
        furnished.accept_withdrawals(releases.withdraw(serial=4))
    with pytest.raises(StateError, match="serial"):
        furnished.accept_withdrawals(releases.withdraw(serial=5))
    assert furnished.standing(furnished.find("tiny-t2"), NOW)[0] == "withdrawn"
    furnished.accept_withdrawals(releases.withdraw(2, serial=5))


def test_a_list_of_withdrawals_by_a_stranger_is_refused(furnished: BundleStore, tmp_path: Path) -> None:
    with pytest.raises(NotAllowedError):
        furnished.accept_withdrawals(Releases(tmp_path / "strangers").withdraw(2))
    assert furnished.standing(furnished.find("tiny-t2"), NOW)[0] == "ready"


def test_each_key_has_a_list_of_its_own(furnished: BundleStore, releases: Releases, tmp_path: Path) -> None:
    others = Releases(tmp_path / "others")
    furnished.pin_key(others.fingerprint, "on paper", NOW, another=True)
    furnished.accept_withdrawals(others.withdraw(1, serial=9, name="tiny-t3"))
    furnished.accept_withdrawals(releases.withdraw(2, serial=1))
    assert furnished.standing(furnished.find("tiny-t2"), NOW)[0] == "withdrawn"
    assert furnished.trust.signed_list(releases.fingerprint) == releases.withdraw(2, serial=1)


# Power cuts and full disks


_KILLED = """
import os, sys
from pathlib import Path
from fedmap.files import durable as durable_files
from fedmap_site.bundles.store import BundleStore
from fedmap_site.bundles import records as bundle_records
where, folder, file, now = sys.argv[1:]
if where == "while the copy is written":
    durable_files.DurableWriter.finish = lambda self: os._exit(9)
elif where == "before the record is written":
    bundle_records.Records.write = lambda *_: os._exit(9)
BundleStore(Path(folder)).install(Path(file), None, int(now))
"""


@pytest.mark.parametrize("where", ["while the copy is written", "before the record is written"])
def test_a_process_killed_while_it_installs_leaves_the_old_bundle_in_force(
    furnished: BundleStore, releases: Releases, where: str
) -> None:
    file = releases.bundle(3)
    arguments = [_KILLED, where, str(furnished.folder), str(file), str(NOW)]
    assert run_forked("-c", arguments, os.environ).returncode == 9
    assert [entry.version for entry in furnished.installed()] == [2]
    assert furnished.open("tiny-t2", NOW).manifest.version == 2
    furnished.install(file, None, NOW)
    assert furnished.open("tiny-t2", NOW).manifest.version == 3
    assert not list(furnished.folder.rglob(".part-*"))


def test_a_folder_that_cannot_be_written_is_told_and_the_old_bundle_works(
    furnished: BundleStore, releases: Releases
) -> None:
    home = furnished.folder / "bundles" / "tiny-t3"
    home.write_text("in the way")
    with pytest.raises(StorageError):
        furnished.install(releases.bundle(1, tier=3), None, NOW)
    assert furnished.open("tiny-t2", NOW).manifest.version == 2


def test_several_that_install_at_once_wait_for_each_other(furnished: BundleStore, releases: Releases) -> None:
    files = [releases.bundle(1, tier=3), releases.bundle(3), releases.bundle(2, tier=3)]
    with ThreadPoolExecutor(len(files)) as pool:
        done = [pool.submit(BundleStore(furnished.folder).install, file, None, NOW) for file in files]
        refused = [one.exception(60) for one in done]
    # Whichever of tier 3 came second, its highest version stands in the record.
    assert all(error is None or isinstance(error, StateError) for error in refused)
    assert {"tiny-t2-2", "tiny-t2-3", "tiny-t3-2"} <= {one.reference for one in furnished.installed()}
    entries_of(furnished)


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("uci-heart-t2", ("uci-heart-t2", None)),
        ("uci-heart-t3-12", ("uci-heart-t3", 12)),
        ("a-t2-1-t3", ("a-t2-1-t3", None)),
        ("a-t2-1-t3-4", ("a-t2-1-t3", 4)),
        ("a-t2-0", None),
        ("a-t2-01", None),
        ("a-t4", None),
        ("../a-t2", None),
        ("a-t2\n", None),
        ("a-t2-1.fedmap", None),
        ("", None),
    ],
)
def test_a_reference_is_a_name_a_numbered_name_or_neither(
    reference: str, parts: tuple[str, int | None] | None
) -> None:
    assert split_reference(reference) == parts
