"""A hospital hands bundles on to clinics of its own network: who gets in, and what is never handed out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedmap.errors import ConfigError
from fedmap.web.bundle_app import make_bundle_app
from fedmap.web.catalogue import Visitor
from fedmap.web.https_server import HttpsServer
from fedmap_site.bundles.server import StoreCatalogue, make_server
from fedmap_site.bundles.store import BundleStore
from fedmap_site.config import ServeSection
from tests.common.bundles.examples import NOW
from tests.common.web.serving import Answer, Federation, ask, serving
from tests.site_agent.bundle_shelf import DAY_MS, Releases, entries_of

LOOPBACK = ("127.0.0.0/8",)


@pytest.fixture(scope="module")
def federation() -> Federation:
    return Federation.found()


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    return Releases(tmp_path / "releases")


@pytest.fixture
def store(tmp_path: Path, releases: Releases) -> BundleStore:
    store = BundleStore(tmp_path / "store")
    store.install(releases.bundle(1), releases.fingerprint, NOW)
    store.install(releases.bundle(1, tier=3), None, NOW)
    return store


class Watched(StoreCatalogue):
    """Lets a test wait until a delivery was recorded, which happens after the last byte."""

    def __init__(self, store: BundleStore, clock: Callable[[], int]) -> None:
        super().__init__(store, LOOPBACK, clock)
        self.recorded = threading.Event()

    def finished(self, visitor: Visitor, file_name: str) -> None:
        super().finished(visitor, file_name)
        self.recorded.set()


class Hospital:
    """The server, and a clinic that asks."""

    def __init__(self, store: BundleStore, federation: Federation, folder: Path) -> None:
        self.now = NOW
        self.catalogue = Watched(store, lambda: self.now)
        self._federation = federation
        self._client = federation.client(folder)
        self._server: HttpsServer | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        with serving(make_bundle_app(self.catalogue, "A hospital"), self._federation) as server:
            self._server = server
            yield

    def ask(self, path: str, **headers: str) -> Answer:
        assert self._server is not None
        return ask(self._server, self._client, path, headers)


@pytest.fixture
def hospital(store: BundleStore, federation: Federation, tmp_path: Path) -> Iterator[Hospital]:
    made = Hospital(store, federation, tmp_path)
    with made.open():
        yield made


def test_a_clinic_on_the_list_sees_the_page_and_gets_the_bytes(
    hospital: Hospital, store: BundleStore, releases: Releases
) -> None:
    page = hospital.ask("/")
    assert page.status == 200
    assert "A tiny study" in page.text
    assert releases.fingerprint in page.text
    got = hospital.ask("/bundles/tiny-t2-1.fedmap")
    assert got.body == releases.bundle(1).read_bytes()
    assert got.headers["etag"] == f'"{store.find("tiny-t2").sha256}"'
    assert "missing" not in hospital.ask("/bundles/tiny-t2-1.fedmap/card").text[:200]


def test_to_whom_a_bundle_went_is_recorded(hospital: Hospital, store: BundleStore) -> None:
    hospital.ask("/bundles/tiny-t3-1.fedmap")
    assert hospital.catalogue.recorded.wait(30)
    last = entries_of(store)[-1]
    assert (last.action, last.subject, dict(last.detail)) == (
        "bundle.served",
        "tiny-t3-1.fedmap",
        {"address": "127.0.0.1"},
    )


@pytest.mark.parametrize("allow", [(), ("10.1.0.0/16",), ("127.0.0.2", "::1")])
@pytest.mark.parametrize("path", ["/", "/index.json", "/bundles/tiny-t2-1.fedmap", "/d/x/tiny-t2-1.fedmap"])
def test_an_address_that_is_not_on_the_list_gets_nothing(
    store: BundleStore, federation: Federation, tmp_path: Path, allow: tuple[str, ...], path: str
) -> None:
    catalogue = StoreCatalogue(store, allow, lambda: NOW)
    with serving(make_bundle_app(catalogue, "A hospital"), federation) as server:
        answer = ask(server, federation.client(tmp_path), path)
    assert answer.status == 403
    assert b"tiny" not in answer.body
    assert b"access list" in answer.body


def test_a_withdrawn_bundle_is_shown_as_such_and_not_handed_out(
    hospital: Hospital, store: BundleStore, releases: Releases
) -> None:
    assert hospital.ask("/withdrawn.json").status == 404
    store.accept_withdrawals(releases.withdraw(1))
    assert "it was wrong" in hospital.ask("/").text
    refused = hospital.ask("/bundles/tiny-t2-1.fedmap")
    assert refused.status == 410
    assert "it was wrong" in refused.text
    assert hospital.ask("/withdrawn.json").body == releases.withdraw(1)
    assert hospital.ask("/bundles/tiny-t3-1.fedmap").status == 200


def test_an_expired_bundle_is_not_handed_out(hospital: Hospital) -> None:
    hospital.now = NOW + 91 * DAY_MS
    assert hospital.ask("/bundles/tiny-t2-1.fedmap").status == 410
    assert hospital.ask("/").status == 200


def test_a_file_that_was_changed_on_the_disk_is_not_handed_out_and_the_others_are(
    hospital: Hospital, store: BundleStore
) -> None:
    assert hospital.ask("/bundles/tiny-t2-1.fedmap").status == 200
    path = store.path_of(store.find("tiny-t2"))
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    assert hospital.ask("/bundles/tiny-t2-1.fedmap").status == 404
    assert hospital.ask("/bundles/tiny-t3-1.fedmap").status == 200
    assert "table of contents" in hospital.catalogue.not_served()[0]


def test_what_is_installed_or_removed_meanwhile_shows_at_once(
    hospital: Hospital, store: BundleStore, releases: Releases
) -> None:
    store.install(releases.bundle(2), None, NOW)
    store.remove("tiny-t3")
    assert hospital.ask("/bundles/tiny-t2-2.fedmap").status == 200
    assert hospital.ask("/bundles/tiny-t3-1.fedmap").status == 404


def test_bundles_of_one_key_are_served_and_the_others_are_named(
    hospital: Hospital, store: BundleStore, tmp_path: Path
) -> None:
    others = Releases(tmp_path / "others")
    store.install(others.bundle(2, tier=3), others.fingerprint, NOW + 1, trust_new_key=True)
    assert hospital.catalogue.key_fingerprint() == others.fingerprint
    assert hospital.ask("/bundles/tiny-t3-2.fedmap").status == 200
    assert hospital.ask("/bundles/tiny-t2-1.fedmap").status == 404
    assert all("another key" in line for line in hospital.catalogue.not_served())
    assert len(hospital.catalogue.not_served()) == 2


def test_an_empty_store_has_an_empty_page(federation: Federation, tmp_path: Path) -> None:
    empty = Hospital(BundleStore(tmp_path / "empty"), federation, tmp_path)
    with empty.open():
        assert empty.ask("/").status == 200
        assert empty.ask("/withdrawn.json").status == 404
    assert empty.catalogue.not_served() == ()


def test_a_server_without_address_certificate_or_access_list_is_refused_in_one_go(store: BundleStore) -> None:
    catalogue = StoreCatalogue(store, (), lambda: NOW)
    with pytest.raises(ConfigError) as refused:
        make_server(catalogue, ServeSection(), "A hospital")
    told = "\n".join(refused.value.problems)
    for part in ("listen", "certificate", "nobody"):
        assert part in told
    assert "10.1.0.0/16" in refused.value.hint
