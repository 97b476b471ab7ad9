"""The pages and downloads of a catalogue over real TLS: what is shown, to whom, when a link is used up."""

from __future__ import annotations

import html
import http.client
import io
import json
import re
import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmap.errors import StorageError
from fedmap.trust.pki import Identity
from fedmap.web.bundle_app import Entry, Visitor, make_bundle_app
from fedmap.web.https_server import HttpsServer
from tests.common.bundles.examples import RELEASED
from tests.common.web.offered import DAY_MS, FINGERPRINT, Shelf, manifest
from tests.common.web.serving import SECONDS, Answer, Federation, ask, serving

HOSTILE = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>"
PAGES = ("/", "/d/open-sesame", "/d/wrong", "/nowhere", "/bundles/uci-heart-t3-1.fedmap/card")


class Clinic:
    """A visitor's browser without the browser."""

    def __init__(self, server: HttpsServer, context: ssl.SSLContext) -> None:
        self.server = server
        self.context = context

    def get(self, path: str, method: str = "GET", **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return ask(self.server, self.context, path, named, method)


@pytest.fixture(scope="module")
def standing(
    federation: Federation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Shelf, Clinic]]:
    """One server for the whole file; `shelf` puts its catalogue back for each test."""
    folder = tmp_path_factory.mktemp("shelf")
    shelf = Shelf(folder)
    with serving(make_bundle_app(shelf, "Heart federation"), federation) as server:
        yield shelf, Clinic(server, federation.client(folder))


@pytest.fixture
def shelf(standing: tuple[Shelf, Clinic]) -> Shelf:
    standing[0].reset()
    return standing[0]


@pytest.fixture
def clinic(standing: tuple[Shelf, Clinic], shelf: Shelf) -> Clinic:
    assert shelf is standing[0]
    return standing[1]


@pytest.fixture
def entry(shelf: Shelf) -> Entry:
    return shelf.entries_offered[shelf.linked]


def words(page: str) -> str:
    """The text that a person reads, on one line."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


def test_the_page_says_what_it_is_for_how_good_until_when_and_how_to_check(
    clinic: Clinic, entry: Entry
) -> None:
    page = clinic.get("/").text
    read = words(page)
    for said in (
        "Heart disease at four hospitals",
        "Method comparison on public data. Not for decisions on patients.",
        "As it comes, without training AUROC",
        "0.800 0.760 to 0.830 4 sites",
        "not measured: no site let a score go",
        "Expires 30 December 2035",
        "4,200 patient records at 4 hospitals",
        "3 MB (3,000,000 bytes)",
        entry.sha256,
        FINGERPRINT,
        f'fedmap-site bundle verify uci-heart-t3-1.fedmap --fingerprint "{FINGERPRINT}"',
    ):
        assert said in read
    assert 'href="/bundles/uci-heart-t3-1.fedmap"' in page


def test_pages_need_nothing_from_elsewhere_and_no_script(clinic: Clinic) -> None:
    for path in PAGES:
        page = clinic.get(path).text
        addresses = re.findall(r'(?:src|href)="([^"]*)"', page)
        assert addresses
        assert all(address.startswith(("/", "#")) and not address.startswith("//") for address in addresses)
        assert not re.search(r"<script|<style|\sstyle=|\son[a-z]+=", page)
    assert not re.search(r"url\(|@import", clinic.get("/style.css").text)


def test_every_answer_has_the_security_headers(clinic: Clinic, entry: Entry) -> None:
    file = f"/bundles/{entry.manifest.file_name}"
    for path in (*PAGES, file, f"{file}/calibration.svg", "/index.json", "/style.css", "/withdrawn.json"):
        headers = clinic.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; style-src 'self';")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers


def test_nothing_under_a_link_is_kept_by_a_browser(clinic: Clinic, shelf: Shelf, entry: Entry) -> None:
    name = entry.manifest.file_name
    for path in ("/d/open-sesame", "/d/wrong", f"/d/open-sesame/{name}/card", f"/d/open-sesame/{name}"):
        assert clinic.get(path).headers["cache-control"] == "no-store"
    assert shelf.arrived.acquire(timeout=SECONDS)


def test_a_downloaded_file_is_the_file(clinic: Clinic, shelf: Shelf, entry: Entry) -> None:
    answer = clinic.get(f"/bundles/{entry.manifest.file_name}")
    assert answer.body == shelf.bytes_of(entry)
    assert answer.headers["etag"] == f'"{entry.sha256}"'
    assert answer.headers["content-disposition"] == 'attachment; filename="uci-heart-t3-1.fedmap"'
    assert answer.headers["accept-ranges"] == "bytes"
    assert shelf.fetched.acquire(timeout=SECONDS)


def test_head_tells_the_size_and_sends_nothing(clinic: Clinic, shelf: Shelf, entry: Entry) -> None:
    path = f"/d/{shelf.token}/{entry.manifest.file_name}"
    for headers in ({}, {"Range": "bytes=10-"}):
        answer = clinic.get(path, "HEAD", **headers)
        assert (answer.status, answer.body) == (206 if headers else 200, b"")
        assert int(answer.headers["content-length"]) == entry.size - (10 if headers else 0)
    assert not shelf.spent


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [("0-0", 0, 0), ("100-", 100, -1), ("5-9", 5, 9), ("-7", -7, -1), ("10-99999999", 10, -1)],
)
def test_a_range_gives_exactly_these_bytes(
    clinic: Clinic, shelf: Shelf, entry: Entry, asked: str, first: int, last: int
) -> None:
    answer = clinic.get(f"/bundles/{entry.manifest.file_name}", Range=f"bytes={asked}")
    first, last = first % entry.size, last % entry.size
    assert answer.status == 206
    assert answer.body == shelf.bytes_of(entry)[first : last + 1]
    assert answer.headers["content-range"] == f"bytes {first}-{last}/{entry.size}"


def test_a_range_past_the_end_is_not_satisfiable(clinic: Clinic, shelf: Shelf, entry: Entry) -> None:
    answer = clinic.get(f"/d/{shelf.token}/{entry.manifest.file_name}", Range=f"bytes={entry.size}-")
    assert (answer.status, answer.headers["content-range"]) == (416, f"bytes */{entry.size}")
    assert not shelf.spent


def test_many_ranges_at_once_give_the_whole_file(clinic: Clinic, shelf: Shelf, entry: Entry) -> None:
    answer = clinic.get(f"/bundles/{entry.manifest.file_name}", Range="bytes=0-1,4-5,8-9")
    assert (answer.status, answer.body) == (200, shelf.bytes_of(entry))


def test_a_resumed_download_of_a_changed_file_starts_anew(clinic: Clinic, shelf: Shelf, entry: Entry) -> None:
    path, whole = f"/bundles/{entry.manifest.file_name}", shelf.bytes_of(entry)
    same = clinic.get(path, Range="bytes=1000-", If_Range=f'"{entry.sha256}"')
    other = clinic.get(path, Range="bytes=1000-", If_Range=f'"{"0" * 64}"')
    assert (same.status, same.body) == (206, whole[1000:])
    assert (other.status, other.body) == (200, whole)


def test_a_file_that_the_client_has_is_not_sent_again(clinic: Clinic, shelf: Shelf, entry: Entry) -> None:
    path = f"/bundles/{entry.manifest.file_name}"
    answer = clinic.get(path, If_None_Match=f'"{entry.sha256}"')
    assert (answer.status, answer.body) == (304, b"")
    assert clinic.get(path, If_None_Match=f'"{"0" * 64}"').body == shelf.bytes_of(entry)


def test_a_link_is_used_up_by_the_last_byte_and_by_nothing_else(
    clinic: Clinic, shelf: Shelf, entry: Entry
) -> None:
    link = f"/d/{shelf.token}"
    file, whole = f"{link}/{entry.manifest.file_name}", shelf.bytes_of(entry)
    assert "Reading this page does not use it up." in words(clinic.get(link).text)
    assert clinic.get(f"{file}/card").status == 200
    assert clinic.get(file, Range="bytes=0-999").body == whole[:1000]
    assert clinic.get(link).status == 200
    assert clinic.get(file, Range="bytes=1000-", Connection="close").body == whole[1000:]
    assert shelf.arrived.acquire(timeout=SECONDS)
    used = clinic.get(file)
    assert used.status == 410
    assert "This download link has been used." in words(used.text)
    assert "Ask for a new link." in words(used.text)
    assert shelf.arrivals == [entry.manifest.file_name]


def test_a_download_that_was_cut_leaves_the_link_good_and_can_be_resumed(
    shelf: Shelf, federation: Federation, tmp_path: Path
) -> None:
    entry = shelf.put(manifest(), size=60_000_000)
    whole = shelf.bytes_of(entry)
    path = f"/d/{shelf.token}/{entry.manifest.file_name}"
    context = federation.client(tmp_path)
    with serving(make_bundle_app(shelf, "Heart federation"), federation) as server:
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=context, timeout=SECONDS)
        connection.request("GET", path)
        begun = connection.getresponse().read(1_000_000)
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        rest = ask(server, context, path, {"Range": f"bytes={len(begun)}-", "If-Range": f'"{entry.sha256}"'})
        assert (rest.status, begun + rest.body == whole) == (206, True)
        assert shelf.arrived.acquire(timeout=SECONDS)
    assert shelf.arrivals == [entry.manifest.file_name]  # the server has ended: no second one can come


def test_who_may_not_see_the_list_is_told_why_and_gets_nothing(
    clinic: Clinic, shelf: Shelf, entry: Entry
) -> None:
    shelf.listing = False
    file = f"/bundles/{entry.manifest.file_name}"
    for path in ("/", "/index.json", file, f"{file}/card", f"{file}/calibration.svg"):
        answer = clinic.get(path)
        assert answer.status == 403
        assert "This server shows its models to clinics it knows." in answer.text
        assert "Ask who runs this server for a download link." in answer.text
        assert entry.sha256 not in answer.text
    assert clinic.get(f"/d/{shelf.token}").status == 200


def test_the_catalogue_learns_certificate_and_address(
    shelf: Shelf, federation: Federation, tmp_path: Path
) -> None:
    pair = federation.pair(Identity("site", "leeds"))
    with serving(make_bundle_app(shelf, "Heart federation"), federation) as server:
        ask(server, federation.client(tmp_path, pair), "/", {"X-Forwarded-For": "10.1.0.9"})
    assert shelf.visitors == [Visitor(ssl.PEM_cert_to_DER_cert(pair[0].decode()), "127.0.0.1", "")]


def test_a_withdrawn_bundle_is_marked_and_cannot_be_had(clinic: Clinic, shelf: Shelf) -> None:
    old = shelf.put(manifest(version=2), withdrawn="Units of cholesterol were mixed.")
    file = f"/bundles/{old.manifest.file_name}"
    page = clinic.get("/").text
    assert "Withdrawn. Do not use this model. Units of cholesterol were mixed." in words(page)
    assert f'href="{file}"' not in page
    assert clinic.get(file).status == 403
    assert "Withdrawn. Do not use this model." in words(clinic.get(f"{file}/card").text)


def test_an_expired_bundle_is_marked(clinic: Clinic, shelf: Shelf) -> None:
    shelf.put(manifest(version=3, expires_unix_ms=RELEASED + DAY_MS))
    assert "Expired on 2 January 2026." in words(clinic.get("/").text)


def test_hostile_text_in_a_manifest_stays_text(clinic: Clinic, shelf: Shelf) -> None:
    hostile = shelf.put(manifest(title=HOSTILE, intended_use=HOSTILE), withdrawn=HOSTILE)
    for path in ("/", f"/bundles/{hostile.manifest.file_name}/card", f"/d/{HOSTILE}", f"/{HOSTILE}"):
        answer = clinic.get(path.replace(" ", "%20"))
        assert "<script" not in answer.text
        assert "<img src=x" not in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/bundles/../../etc/passwd",
        "/bundles/..%2f..%2fetc%2fpasswd",
        "/bundles/%2e%2e/index",
        "/bundles/uci-heart-t3-1.fedmap%00",
        "/bundles/uci-heart-t3-2.fedmap",
        "/bundles/",
        "/d/",
        "/d/open-sesame/uci-heart-t2-1.fedmap",
        f"/d/{'a' * 5000}",
        "/templates/base.html",
        "/%ff%fe",
    ],
)
def test_paths_that_name_nothing_find_nothing(clinic: Clinic, path: str) -> None:
    answer = clinic.get(path)
    assert answer.status == 404
    assert "What to do" in words(answer.text)


def test_errors_are_pages_for_people_and_json_for_programs(clinic: Clinic) -> None:
    for path in ("/nowhere", "/bundles/absent.fedmap", "/d/wrong"):
        said = json.loads(clinic.get(path, Accept="application/json").body)
        assert set(said) == {"code", "message", "hint"}
        assert all(said.values())
        browser = clinic.get(path, Accept="text/html,application/json;q=0.9,*/*;q=0.8")
        assert browser.text.startswith("<!doctype html>")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_only_reading_is_possible(clinic: Clinic, entry: Entry, method: str) -> None:
    for path in ("/", f"/bundles/{entry.manifest.file_name}", "/d/open-sesame"):
        answer = clinic.get(path, method)
        assert answer.status == 405
        assert "What to do" in words(answer.text)


def test_a_broken_disk_is_a_plain_page_without_paths(
    shelf: Shelf, clinic: Clinic, entry: Entry, logged: io.StringIO
) -> None:
    (shelf.folder / entry.manifest.file_name).unlink()
    answer = clinic.get(f"/bundles/{entry.manifest.file_name}")
    assert answer.status == 503
    assert str(shelf.folder) not in answer.text + logged.getvalue()
    assert StorageError.code in logged.getvalue()


def test_a_crash_in_the_catalogue_is_a_plain_page(
    clinic: Clinic, shelf: Shelf, logged: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    shelf.entries_offered = {"secret-of-the-catalogue": None}  # type: ignore[dict-item]
    answer = clinic.get("/")
    said = capsys.readouterr()
    assert answer.status == 500
    assert "The server failed to answer." in words(answer.text)
    assert "content-security-policy" in answer.headers
    assert "web_request_failed" in logged.getvalue()
    assert "secret" not in answer.text + logged.getvalue() + said.out + said.err


def test_the_index_is_for_programs_and_a_link_has_one_too(clinic: Clinic, shelf: Shelf, entry: Entry) -> None:
    for path, base in (("/index.json", "/bundles"), (f"/d/{shelf.token}", f"/d/{shelf.token}")):
        said = json.loads(clinic.get(path, Accept="application/json").body)
        (listed,) = said["bundles"]
        assert (said["format"], said["key_fingerprint"]) == (1, FINGERPRINT)
        assert (listed["name"], listed["version"], listed["tier"]) == ("uci-heart-t3", 1, 3)
        assert (listed["sha256"], listed["size"]) == (entry.sha256, entry.size)
        assert listed["path"] == f"{base}/{entry.manifest.file_name}"
        assert clinic.get(listed["path"], "HEAD").status == 200


def test_the_signed_withdrawals_go_out_as_they_are(clinic: Clinic, shelf: Shelf) -> None:
    assert clinic.get("/withdrawn.json").status == 404
    shelf.signed_withdrawals = b'{"signed": "list"}\n'
    shelf.listing = False
    answer = clinic.get("/withdrawn.json")
    assert (answer.body, answer.headers["content-type"]) == (shelf.signed_withdrawals, "application/json")


def test_health_is_told_to_everybody(clinic: Clinic, shelf: Shelf) -> None:
    shelf.listing = False
    assert (clinic.get("/healthz").status, clinic.get("/healthz").text) == (200, "ok\n")


def test_the_card_is_the_bundles_own_with_its_picture(clinic: Clinic, entry: Entry) -> None:
    file = f"/bundles/{entry.manifest.file_name}"
    page = clinic.get(f"{file}/card").text
    for heading in ("Predictors", "Missing values", "Calibration", "Limits", "Versions and lineage"):
        assert f"<h2>{heading}</h2>" in page
    assert f'<img src="{file}/calibration.svg"' in page
    picture = clinic.get(f"{file}/calibration.svg")
    assert picture.headers["content-type"] == "image/svg+xml"
    assert picture.text.startswith("<svg")
    linked = clinic.get(f"/d/open-sesame/{entry.manifest.file_name}/card").text
    assert '<img src="/d/open-sesame/' in linked
    assert clinic.get(f"/d/open-sesame/{entry.manifest.file_name}/calibration.svg").status == 200


def test_a_model_without_measured_calibration_has_no_picture(clinic: Clinic, shelf: Shelf) -> None:
    plain = shelf.put(manifest(version=4, calibration=(), performance=(), data=None))
    assert clinic.get(f"/bundles/{plain.manifest.file_name}/calibration.svg").status == 404
    assert "This version was not measured." in words(clinic.get("/").text)
    assert "<img" not in clinic.get(f"/bundles/{plain.manifest.file_name}/card").text


def test_an_empty_catalogue_says_so(clinic: Clinic, shelf: Shelf) -> None:
    shelf.entries_offered.clear()
    shelf.fingerprint = ""
    page = words(clinic.get("/").text)
    assert "There is no model here for you yet." in page
    assert "How to check a file" not in page
