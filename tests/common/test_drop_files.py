"""Drop files: what was signed comes out, and everything that someone did to a file on the way is refused."""

from __future__ import annotations

import datetime
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedmap.contract import wire
from fedmap.contract.v1 import values
from fedmap.errors import FedmapError, IncompatibleError, IntegrityError, RejectedError, StorageError
from fedmap.files.digests import sha256_hex
from fedmap.files.stored_zip import PLAIN, STREAMED, Member, Style
from fedmap.trust import drop_files
from fedmap.trust.drop_files import DropFile
from fedmap.trust.pki import CertificateAuthority, Identity, key_pem, make_csr, new_key

NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
SITE = Identity("site", "a")
TENSORS = bytes(range(256)) * 5000
Members = dict[str, bytes]


class Sender:
    """A site with a certificate, and one that has none yet."""

    def __init__(self) -> None:
        self.ca, _ = CertificateAuthority.create("test", 100, NOW)
        self.key = new_key()
        self.key_pem = key_pem(self.key)
        self.chain = self.ca.issue(self.key.public_key(), SITE, 10, NOW)

    def answer(
        self, folder: Path, *, tensors: bytes | None = TENSORS, drop: values.Drop | None = None
    ) -> Path:
        source = None
        if tensors is not None:
            source = folder / "tensors"
            source.write_bytes(tensors)
        path = folder / "answer.fedmap-drop"
        drop_files.write(path, drop or content(), source, self.key_pem, self.chain)
        return path

    def verify(self, file: DropFile, expected: Identity = SITE) -> None:
        file.verify(self.ca.certificate_pem, NOW, expected)


def content() -> values.Drop:
    return values.Drop(site="a", made_unix_ms=1, answer=values.DropAnswer(answer=b"bytes of an answer"))


@pytest.fixture(scope="module")
def sender() -> Sender:
    return Sender()


def read(path: Path, most_tensors: int = 0) -> DropFile:
    into = path.parent / "extracted"
    into.mkdir(exist_ok=True)
    return drop_files.read(path, into, most_tensors)


def extracted(path: Path) -> list[Path]:
    return list((path.parent / "extracted").iterdir())


def repacked(path: Path, change: Callable[[Members], object], compression: int = zipfile.ZIP_STORED) -> Path:
    """The file as somebody on the way could pack it again, who knows its form."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = compression
            archive.writestr(info, data)
    return path


def test_an_answer_travels_with_its_tensors(tmp_path: Path, sender: Sender) -> None:
    file = read(sender.answer(tmp_path))
    sender.verify(file)
    assert file.drop.format == 1
    assert file.drop.answer == content().answer
    assert file.drop.tensors_digest == sha256_hex(TENSORS)
    assert file.tensors_path is not None
    assert file.tensors_path.read_bytes() == TENSORS
    file.discard()
    file.discard()
    assert not extracted(tmp_path / "x")


def test_a_drop_without_tensors_travels_too(tmp_path: Path, sender: Sender) -> None:
    file = read(sender.answer(tmp_path, tensors=None))
    sender.verify(file)
    assert file.tensors_path is None
    file.discard()


def test_only_the_finished_file_is_left_by_the_writer(tmp_path: Path, sender: Sender) -> None:
    sender.answer(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"tensors", "answer.fedmap-drop"}
    with pytest.raises(StorageError, match="no such file"):
        drop_files.write(tmp_path / "other", content(), tmp_path / "missing", sender.key_pem, sender.chain)
    assert not (tmp_path / "other").exists()


def test_an_enrolment_is_signed_by_the_key_it_asks_a_certificate_for(tmp_path: Path, sender: Sender) -> None:
    key = new_key()
    asked = values.DropEnrolment(token="t", csr_pem=make_csr(key, SITE))
    path = tmp_path / "enrolment"
    drop_files.write(path, values.Drop(site="a", enrolment=asked), None, key_pem(key), b"")
    sender.verify(read(path))
    with pytest.raises(RejectedError, match="another name"):
        sender.verify(read(path), Identity("site", "b"))
    drop_files.write(path, values.Drop(site="a", enrolment=asked), None, key_pem(new_key()), b"")
    with pytest.raises(IntegrityError, match="does not fit"):
        sender.verify(read(path))


def test_a_file_signed_by_another_site_is_refused(tmp_path: Path, sender: Sender) -> None:
    file = read(sender.answer(tmp_path))
    for expected in (Identity("site", "b"), Identity("aggregator"), Identity("operator", "a")):
        with pytest.raises(IntegrityError, match="signed by site a"):
            sender.verify(file, expected)


def test_a_file_signed_by_another_federation_is_refused(tmp_path: Path, sender: Sender) -> None:
    file = read(Sender().answer(tmp_path))
    with pytest.raises(IntegrityError, match="does not come from"):
        sender.verify(file)


def test_a_file_signed_after_the_certificate_ended_is_refused(tmp_path: Path, sender: Sender) -> None:
    file = read(sender.answer(tmp_path))
    with pytest.raises(IntegrityError, match="has ended"):
        file.verify(sender.ca.certificate_pem, NOW + datetime.timedelta(days=11), SITE)


def test_changed_tensors_are_refused_and_not_left_behind(tmp_path: Path, sender: Sender) -> None:
    path = repacked(sender.answer(tmp_path), lambda m: m.update({"tensors.safetensors": b"other"}))
    with pytest.raises(IntegrityError, match="do not fit their digest"):
        read(path)
    assert not extracted(path)


def with_drop(**changes: Any) -> Callable[[Members], object]:
    """Other content, and where its digest is changed the tensors that fit it."""

    def change(members: Members) -> None:
        drop = replace(wire.read(values.Drop, members["content.pb"]), **changes)
        members["content.pb"] = wire.write(drop)
        if drop.tensors_digest == sha256_hex(b"other"):
            members["tensors.safetensors"] = b"other"

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.update({"../../etc/passwd": b"x"}), "table of contents"),
        (lambda m: m.update({"extra": b"x"}), "table of contents"),
        (lambda m: m.update({"content.pb": m.pop("content.pb")}), "stands where content.pb must be"),
        (lambda m: m.pop("signature"), "header of signature is missing"),
        (lambda m: m.pop("signer.pem"), "stands where signer.pem must be"),
        (lambda m: m.pop("content.pb"), "stands where content.pb must be"),
        (lambda m: m.pop("tensors.safetensors"), "stands where tensors.safetensors must be"),
        (lambda m: m.update({"content.pb": b"\xff\xff"}), "content cannot be read"),
        (lambda m: m.update({"content.pb": wire.write(values.Drop(format=1))}), "incomplete"),
        (lambda m: m.update({"signature": b"x" * 2000}), "larger than the limit"),
        (lambda m: m.update({"signer.pem": b"x" * 70_000}), "larger than the limit"),
        (lambda m: m.update({"signer.pem": b""}), "certificates cannot be read"),
        (with_drop(site="../a"), "incomplete"),
        (with_drop(tensors_digest="../../x"), "malformed"),
        (
            with_drop(answer=values.DropAnswer(answer=b"other bytes")),
            "signature does not fit",
        ),
        (with_drop(tensors_digest=sha256_hex(b"other")), "signature does not fit"),
    ],
)
def test_a_file_of_another_form_or_content_is_refused(
    tmp_path: Path, sender: Sender, change: Callable[[Members], object], words: str
) -> None:
    with pytest.raises(IntegrityError, match=words):
        sender.verify(read(repacked(sender.answer(tmp_path), change)))


def test_tensors_that_nobody_named_are_refused(tmp_path: Path, sender: Sender) -> None:
    path = repacked(sender.answer(tmp_path, tensors=None), lambda m: m.update({"tensors.safetensors": b"x"}))
    with pytest.raises(IntegrityError, match="table of contents"):
        read(path)


def test_a_later_format_asks_for_an_update(tmp_path: Path, sender: Sender) -> None:
    later = wire.write(values.Drop(format=2, site="a"))
    with pytest.raises(IncompatibleError, match="format 2"):
        read(repacked(sender.answer(tmp_path), lambda m: m.update({"content.pb": later})))


def test_a_zip_bomb_is_refused_unopened(tmp_path: Path, sender: Sender) -> None:
    bomb = repacked(
        sender.answer(tmp_path),
        lambda m: m.update({"tensors.safetensors": bytes(50_000_000)}),
        zipfile.ZIP_DEFLATED,
    )
    assert bomb.stat().st_size < 100_000
    with pytest.raises(IntegrityError, match="is compressed"):
        read(bomb)
    assert not extracted(bomb)


def test_a_size_over_the_limit_is_refused(tmp_path: Path, sender: Sender) -> None:
    path = sender.answer(tmp_path)
    with pytest.raises(IntegrityError, match="larger than the limit"):
        read(path, len(TENSORS) - 1)
    read(path, len(TENSORS))


def test_the_same_member_twice_is_refused(tmp_path: Path, sender: Sender) -> None:
    path = sender.answer(tmp_path)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("content.pb", b"second")
    with pytest.raises(IntegrityError, match="table of contents"):
        read(path)


@pytest.mark.parametrize("style", [*STREAMED, PLAIN])
def test_a_file_of_an_earlier_version_is_read(tmp_path: Path, sender: Sender, style: Style) -> None:
    """It streamed the tensors through Python's zipfile, which says their size in another place."""
    path = sender.answer(tmp_path)
    with zipfile.ZipFile(path) as archive:
        contents = [(info.filename, archive.read(info)) for info in archive.infolist()]
    members = [
        Member(name, len(data), crc32(data), style if name == "tensors.safetensors" else PLAIN)
        for name, data in contents
    ]
    stored = b"".join(m.header() + data for m, (_, data) in zip(members, contents, strict=True))
    path.write_bytes(stored + drop_files.FORM.directory(members))
    sender.verify(read(path))
    if style != STREAMED[0]:
        return
    streamed = tmp_path / "streamed"
    with zipfile.ZipFile(streamed, "w") as archive:
        for name, data in contents:
            with archive.open(
                zipfile.ZipInfo(name), "w", force_zip64=name == "tensors.safetensors"
            ) as target:
                target.write(data)
    assert streamed.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    "data", [b"", b"PK", b"not a zip at all, but long enough to have an end", bytes(200)]
)
def test_what_is_no_zip_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(IntegrityError, match=r"drop file cannot be used: .*(cut short|is missing)"):
        read(tmp_path / "file")


def test_a_missing_file_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such file"):
        read(tmp_path / "missing")


def test_a_truncated_file_is_refused(tmp_path: Path, sender: Sender) -> None:
    path = sender.answer(tmp_path, tensors=b"few")
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(IntegrityError):
            read(path)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_flipped_byte_gets_past_reading_and_verifying(
    tmp_path: Path, sender: Sender, data: st.DataObject
) -> None:
    path = sender.answer(tmp_path, tensors=b"few")
    whole = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, 2**16)) % len(whole)  # the length differs by signature
    whole[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    with pytest.raises(FedmapError):
        sender.verify(read(path))
