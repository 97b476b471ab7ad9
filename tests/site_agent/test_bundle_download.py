"""Downloads over real TLS and real gRPC: cut, changed, too long, hostile; resumed where that is right."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.types import ASGIApp

from fedmap.errors import (
    ConfigError,
    ConflictError,
    FedmapError,
    IntegrityError,
    LimitError,
    NotAllowedError,
    NotFoundError,
    RejectedError,
    StateError,
    StorageError,
    UnreachableError,
)
from fedmap.files.digests import sha256_hex
from fedmap.trust.pki import Identity
from fedmap.web.bundle_app import make_bundle_app
from fedmap.web.https_server import HttpsServer
from fedmap_site.bundles.download import TRIES, FederationSource, download
from fedmap_site.bundles.links import WebSource
from fedmap_site.bundles.server import StoreCatalogue
from fedmap_site.bundles.store import BundleStore
from fedmap_site.link.https import Link, Way, check_proxy, parse_link
from tests.common.bundles.examples import NOW
from tests.common.web.offered import Shelf
from tests.common.web.serving import Federation, serving
from tests.site_agent.bundle_shelf import Releases
from tests.site_agent.federation_double import AggregatorDouble
from tests.site_agent.web_doubles import Cutting, Told, telling, way_of

NAME = "tiny-t2-1.fedmap"


@pytest.fixture(scope="module")
def federation() -> Federation:
    return Federation.found()


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    return Releases(tmp_path / "releases")


@pytest.fixture
def hospital(tmp_path: Path, releases: Releases) -> ASGIApp:
    """The pages of a hospital that hands on version 1 of two bundles."""
    store = BundleStore(tmp_path / "hospital")
    store.install(releases.bundle(1), releases.fingerprint, NOW)
    store.install(releases.bundle(1, tier=3), None, NOW)
    return make_bundle_app(StoreCatalogue(store, ("127.0.0.0/8",), lambda: NOW), "A hospital")


def no_pause(_seconds: float) -> None:
    return None


def file_link(port: int) -> Link:
    return Link("localhost", port, f"/bundles/{NAME}")


# Over HTTPS


def test_a_bundle_is_chosen_by_its_name_from_a_hospitals_page(
    hospital: ASGIApp, federation: Federation, releases: Releases, tmp_path: Path
) -> None:
    with serving(hospital, federation) as server:
        source = WebSource(Link("localhost", server.port, "/"), way_of(federation), "tiny-t2")
        file = download(source, tmp_path / "in", pause=no_pause)
    assert file.name == NAME
    assert file.read_bytes() == releases.bundle(1).read_bytes()
    assert [path.name for path in file.parent.iterdir()] == [NAME]


def test_a_one_time_link_survives_a_cut_and_works_once(federation: Federation, tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "shelf")
    shelf.folder.mkdir()
    shelf.reset()
    entry = shelf.entries_offered[shelf.linked]
    cutting = Cutting(make_bundle_app(shelf, "A federation"), after=1_000_000)
    with serving(cutting, federation) as server:
        link = Link("localhost", server.port, f"/d/{shelf.token}")
        file = download(WebSource(link, way_of(federation)), tmp_path / "in", pause=no_pause)
        assert file.read_bytes() == shelf.bytes_of(entry)
        assert cutting.ranges == ["", "bytes=1000000-"]
        assert shelf.arrived.acquire(timeout=30)
        with pytest.raises(StateError, match="has been used"):
            WebSource(link, way_of(federation)).look()
        with pytest.raises(StateError, match="has been used"):
            WebSource(Link("localhost", server.port, f"{link.path}/{file.name}"), way_of(federation)).look()
        with pytest.raises(NotFoundError, match="no such download link"):
            WebSource(Link("localhost", server.port, "/d/guessed"), way_of(federation)).look()


def test_a_page_with_several_bundles_asks_for_a_name(
    hospital: ASGIApp, federation: Federation, tmp_path: Path
) -> None:
    with serving(hospital, federation) as server:
        page = Link("localhost", server.port, "/")
        with pytest.raises(RejectedError, match="tiny-t3"):
            download(WebSource(page, way_of(federation)), tmp_path, pause=no_pause)
        with pytest.raises(NotFoundError):
            download(WebSource(page, way_of(federation), "other-t2"), tmp_path, pause=no_pause)
        with pytest.raises(NotFoundError):
            download(WebSource(page, way_of(federation), "tiny-t2", 7), tmp_path, pause=no_pause)


def test_a_download_that_is_cut_goes_on_where_it_stopped_in_the_same_run(
    hospital: ASGIApp, federation: Federation, releases: Releases, tmp_path: Path
) -> None:
    cutting = Cutting(hospital, after=5000, times=2)
    seen: list[tuple[int, int]] = []
    with serving(cutting, federation) as server:
        source = WebSource(file_link(server.port), way_of(federation))
        file = download(source, tmp_path, lambda done, size: seen.append((done, size)), no_pause)
    whole = releases.bundle(1).read_bytes()
    assert file.read_bytes() == whole
    assert cutting.ranges == ["", "bytes=5000-", "bytes=10000-"]
    assert seen[-1] == (len(whole), len(whole))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_download_that_was_given_up_goes_on_where_it_stopped_in_the_next_run(
    hospital: ASGIApp, federation: Federation, releases: Releases, tmp_path: Path
) -> None:
    def give_up(_seconds: float) -> None:
        raise KeyboardInterrupt

    with serving(Cutting(hospital, after=7000), federation) as server, pytest.raises(KeyboardInterrupt):
        download(WebSource(file_link(server.port), way_of(federation)), tmp_path, pause=give_up)
    assert (tmp_path / f"{NAME}.part").stat().st_size == 7000
    assert not (tmp_path / NAME).exists()
    again = Cutting(hospital, after=0, times=0)
    with serving(again, federation) as server:
        file = download(WebSource(file_link(server.port), way_of(federation)), tmp_path, pause=no_pause)
    assert again.ranges == ["bytes=7000-"]
    assert file.read_bytes() == releases.bundle(1).read_bytes()
    assert sorted(path.name for path in tmp_path.glob("tiny*")) == [NAME]


def test_a_server_that_always_cuts_is_given_up_and_what_arrived_is_kept(
    hospital: ASGIApp, federation: Federation, tmp_path: Path
) -> None:
    pauses: list[float] = []
    cutting = Cutting(hospital, after=0, times=100)
    with serving(cutting, federation) as server:
        source = WebSource(file_link(server.port), way_of(federation))
        with pytest.raises(UnreachableError) as raised:
            download(source, tmp_path, pause=pauses.append)
    assert "where it stopped" in raised.value.hint
    assert len(pauses) == TRIES
    assert pauses == sorted(pauses)


def test_a_file_that_changed_meanwhile_is_fetched_from_its_beginning(
    federation: Federation, tmp_path: Path
) -> None:
    """An old server that knows no ranges; its file changes between two attempts."""
    old, new = os.urandom(9000), os.urandom(9000)

    def answer(_method: str, _path: str) -> tuple[int, dict[str, str], bytes]:
        return 200, {"ETag": f'"{sha256_hex(new)}"'}, new

    (tmp_path / f"{NAME}.part").write_bytes(old[:4000])
    (tmp_path / f"{NAME}.part.json").write_text(f'{{"tag":"\\"{sha256_hex(old)}\\"","size":9000}}')
    with telling(Told(answer), federation, tmp_path) as told:
        file = download(WebSource(told.link, way_of(federation)), tmp_path, pause=no_pause)
    assert file.read_bytes() == new
    assert "Range" not in told.asked[-1][2]


def test_a_server_that_starts_anew_where_a_range_was_asked_is_followed(
    federation: Federation, tmp_path: Path
) -> None:
    data = os.urandom(9000)
    tag = f'"{sha256_hex(data)}"'
    (tmp_path / f"{NAME}.part").write_bytes(b"x" * 4000)  # of the same file, as far as its note knows
    (tmp_path / f"{NAME}.part.json").write_text(f'{{"tag":"\\"{sha256_hex(data)}\\"","size":9000}}')
    with telling(Told(lambda _m, _p: (200, {"ETag": tag}, data)), federation, tmp_path) as told:
        file = download(WebSource(told.link, way_of(federation)), tmp_path, pause=no_pause)
    assert told.asked[-1][2]["Range"] == "bytes=4000-"
    assert told.asked[-1][2]["If-Range"] == tag
    assert file.read_bytes() == data


def test_a_file_that_changes_between_looking_and_reading_is_looked_at_again(
    federation: Federation, tmp_path: Path
) -> None:
    data, looked = os.urandom(9000), threading.Event()

    def answer(method: str, _path: str) -> tuple[int, dict[str, str], bytes]:
        first = method == "HEAD" and not looked.is_set()
        looked.set()
        return 200, {"ETag": '"old"' if first else f'"{sha256_hex(data)}"'}, data

    with telling(Told(answer), federation, tmp_path) as told:
        file = download(WebSource(told.link, way_of(federation)), tmp_path, pause=no_pause)
    assert file.read_bytes() == data


def test_bytes_that_were_changed_on_the_way_are_refused_and_not_kept(
    federation: Federation, tmp_path: Path
) -> None:
    announced = sha256_hex(b"y" * 9000)
    told = Told(lambda _m, _p: (200, {"ETag": f'"{announced}"'}, b"x" * 9000))
    with telling(told, federation, tmp_path), pytest.raises(IntegrityError, match="not the tiny-t2-1"):
        download(WebSource(told.link, way_of(federation)), tmp_path, pause=no_pause)
    assert not list(tmp_path.glob("tiny*"))


@pytest.mark.parametrize(
    ("status", "headers", "body", "kind", "words"),
    [
        (302, {"Location": "https://elsewhere/"}, b"", RejectedError, "sends this address on"),
        (403, {}, b"no", NotAllowedError, "refused"),
        (404, {}, b"<html>", NotFoundError, "refused"),
        (
            410,
            {},
            b'{"code":"state","message":"it was withdrawn","hint":"h"}',
            StateError,
            "it was withdrawn",
        ),
        (404, {}, b'{"code":"token","message":"\\u001b[31mused","hint":"h"}', FedmapError, "used"),
        (503, {}, b"", UnreachableError, "503"),
        (200, {"Content-Length": str(1 << 50)}, b"", LimitError, "announces"),
        (200, {"Content-Length": "-1"}, b"", IntegrityError, "how long"),
        (200, {}, b"", LimitError, "announces 0"),
    ],
)
def test_what_a_server_refuses_or_pretends_comes_out_in_plain_words(
    federation: Federation,
    tmp_path: Path,
    status: int,
    headers: dict[str, str],
    body: bytes,
    kind: type[FedmapError],
    words: str,
) -> None:
    told = Told(lambda _m, _p: (status, headers, body))
    with telling(told, federation, tmp_path), pytest.raises(kind, match=words) as raised:
        download(WebSource(told.link, way_of(federation)), tmp_path / "in", pause=no_pause)
    assert raised.value.hint
    assert "\x1b" not in str(raised.value)
    assert not list((tmp_path / "in").iterdir())


@pytest.mark.parametrize(
    "path", ["/bundles/..%2f..%2fetc.fedmap", "/bundles/%2e%2e.fedmap", "/bundles/a%00-t2-1.fedmap"]
)
def test_a_name_that_is_a_path_is_refused_before_any_file_is_named(
    federation: Federation, tmp_path: Path, path: str
) -> None:
    with telling(Told(lambda _m, _p: (200, {}, b"x" * 10)), federation, tmp_path) as told:
        source = WebSource(Link("localhost", told.port, path), way_of(federation))
        with pytest.raises(IntegrityError, match="no bundle's name"):
            download(source, tmp_path / "in", pause=no_pause)
    assert not list((tmp_path / "in").iterdir())


@pytest.mark.parametrize(
    "index",
    [
        b"not json",
        b"[]",
        b'{"bundles": [{"name": "tiny-t2", "version": 1, "path": "https://elsewhere/tiny-t2-1.fedmap"}]}',
        b'{"bundles": [{"name": "tiny-t2", "version": "1", "path": "/tiny-t2-1.fedmap"}]}',
        b'{"bundles": [{"name": "tiny-t2", "version": 1, "path": "/a b\\r\\nX: y.fedmap"}]}',
        b'{"bundles": [{"name": "tiny-t2", "version": 1, "path": "/t.fedmap", "withdrawn": "bad"}]}',
    ],
)
def test_a_list_that_makes_no_sense_or_offers_nothing_is_refused(
    federation: Federation, tmp_path: Path, index: bytes
) -> None:
    with telling(Told(lambda _m, _p: (200, {}, index)), federation, tmp_path) as told:
        source = WebSource(Link("localhost", told.port, "/d/secret-token"), way_of(federation), "tiny-t2")
        with pytest.raises((IntegrityError, NotFoundError, StateError)) as raised:
            source.look()
    assert "secret-token" not in str(raised.value)


def test_a_server_whose_certificate_nobody_vouches_for_is_not_believed(
    hospital: ASGIApp, federation: Federation, tmp_path: Path
) -> None:
    with serving(hospital, federation) as server:
        for way in (Way(), way_of(Federation.found())):
            with pytest.raises(NotAllowedError, match="is not trusted") as raised:
                download(WebSource(file_link(server.port), way), tmp_path, pause=no_pause)
            assert "--ca" in raised.value.hint


def test_a_certificate_for_another_name_is_not_believed(hospital: ASGIApp, federation: Federation) -> None:
    pair = federation.pair(Identity("aggregator"), hosts=("elsewhere.example",))
    server = HttpsServer("127.0.0.1:0", hospital, lambda: pair)
    server.start()
    try:
        with pytest.raises(NotAllowedError, match=r"is not trusted.*[Hh]ostname"):
            WebSource(file_link(server.port), way_of(federation)).look()
    finally:
        server.stop()


def test_a_port_where_nobody_listens_is_unreachable(federation: Federation, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(UnreachableError):
        WebSource(file_link(port), way_of(federation)).look()
    with pytest.raises(ConfigError, match="PEM"):
        WebSource(file_link(port), Way(authority=b"nonsense")).look()
    assert not list(tmp_path.iterdir())


def test_a_proxy_with_a_password_is_gone_through(
    hospital: ASGIApp, federation: Federation, tmp_path: Path
) -> None:
    with serving(hospital, federation) as server, proxying() as (port, heads):
        way = way_of(federation, f"http://clinic:pass%40word@127.0.0.1:{port}")
        file = download(WebSource(file_link(server.port), way), tmp_path, pause=no_pause)
        assert file.exists()
        assert heads[0].startswith(f"CONNECT localhost:{server.port} ")
        assert "Proxy-Authorization: Basic Y2xpbmljOnBhc3NAd29yZA==" in heads[0]
    assert "pass" not in repr(way)


@contextmanager
def proxying() -> Iterator[tuple[int, list[str]]]:
    """A small CONNECT proxy: its port, and the requests that it got."""
    heads: list[str] = []
    threads: list[threading.Thread] = []

    def serve(client: socket.socket) -> None:
        with client:
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(4096)
            heads.append(head.decode())
            host, _, port = head.split()[1].decode().rpartition(":")
            with socket.create_connection((host, int(port))) as upstream:
                client.sendall(b"HTTP/1.1 200 go on\r\n\r\n")
                pair = {client: upstream, upstream: client}
                while True:
                    for ready in select.select(list(pair), [], [])[0]:
                        data = ready.recv(65536)
                        if not data:
                            return
                        pair[ready].sendall(data)

    def accept(listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=serve, args=(client,)))
            threads[-1].start()

    listener = socket.create_server(("127.0.0.1", 0))
    threads.append(threading.Thread(target=accept, args=(listener,)))
    threads[0].start()
    try:
        yield listener.getsockname()[1], heads
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in threads:
            thread.join()


# Files


def test_a_file_that_is_here_already_is_not_fetched_again(
    hospital: ASGIApp, federation: Federation, releases: Releases, tmp_path: Path
) -> None:
    counting = Cutting(hospital, after=0, times=0)
    (tmp_path / NAME).write_bytes(releases.bundle(1).read_bytes())
    with serving(counting, federation) as server:
        download(WebSource(file_link(server.port), way_of(federation)), tmp_path, pause=no_pause)
    assert counting.ranges == []


def test_another_file_of_that_name_is_not_written_over(
    hospital: ASGIApp, federation: Federation, tmp_path: Path
) -> None:
    (tmp_path / NAME).write_bytes(b"precious")
    with serving(hospital, federation) as server, pytest.raises(ConflictError):
        download(WebSource(file_link(server.port), way_of(federation)), tmp_path, pause=no_pause)
    assert (tmp_path / NAME).read_bytes() == b"precious"


def test_two_that_download_the_same_file_do_not_mix_their_bytes(
    hospital: ASGIApp, federation: Federation, tmp_path: Path
) -> None:
    with (tmp_path / f"{NAME}.part").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with serving(hospital, federation) as server, pytest.raises(StorageError, match="another process"):
            download(WebSource(file_link(server.port), way_of(federation)), tmp_path, pause=no_pause)


# Addresses


@pytest.mark.parametrize(
    "text",
    [
        "http://host/d/token",
        "ftp://host/",
        "https://user:secret@host/",
        "https://host/d/token?x=1",
        "https://host/#part",
        "https://host:99999/",
        "https://",
        "host/d/token",
        "https://host/a b",
        "https://host/\u00e9",
        "https://[::1/",
        "",
    ],
)
def test_an_address_that_is_not_plain_https_is_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_link(text)
    assert "token" not in str(raised.value)
    assert "secret" not in str(raised.value)


def test_an_address_is_taken_apart() -> None:
    assert parse_link(" https://Host.Example:8445/d/abc ") == Link("host.example", 8445, "/d/abc")
    assert parse_link("https://[::1]") == Link("::1", 443, "/")
    assert "abc" not in repr(parse_link("https://host/d/abc"))
    assert check_proxy("http://squid:3128") == "http://squid:3128"
    with pytest.raises(ConfigError):
        check_proxy("squid:3128")


# Over gRPC


@pytest.fixture
def aggregator(releases: Releases) -> Iterator[AggregatorDouble]:
    with AggregatorDouble() as double:
        double.bundles = {("tiny-t2", n): releases.bundle(n).read_bytes() for n in (1, 2)}
        yield double


def test_the_newest_version_that_stands_comes_from_the_federation(
    aggregator: AggregatorDouble, tmp_path: Path
) -> None:
    with aggregator.connection() as connection:
        file = download(FederationSource(connection, "tiny-t2", None), tmp_path, pause=no_pause)
        assert (file.name, file.read_bytes()) == ("tiny-t2-2.fedmap", aggregator.bundles["tiny-t2", 2])
        aggregator.withdrawn["tiny-t2", 2] = "it was wrong"
        assert download(FederationSource(connection, "tiny-t2", None), tmp_path).name == NAME
        with pytest.raises(StateError, match="it was wrong"):
            download(FederationSource(connection, "tiny-t2", 2), tmp_path)
        with pytest.raises(NotFoundError):
            download(FederationSource(connection, "tiny-t3", None), tmp_path)


def test_a_stream_from_the_federation_that_is_cut_goes_on_where_it_stopped(
    aggregator: AggregatorDouble, tmp_path: Path
) -> None:
    aggregator.cut_bundle_after = 6000
    with aggregator.connection() as connection:
        file = download(FederationSource(connection, "tiny-t2", 1), tmp_path, pause=no_pause)
    assert file.read_bytes() == aggregator.bundles["tiny-t2", 1]
    assert aggregator.bundle_offsets == [0, 6000]


def test_a_federation_that_sends_more_than_it_announced_is_cut_off(
    aggregator: AggregatorDouble, tmp_path: Path
) -> None:
    with aggregator.connection() as connection:
        source = FederationSource(connection, "tiny-t2", 1)
        announced = source.look()
        aggregator.bundles["tiny-t2", 1] += b"more"
        source.look = lambda: announced  # type: ignore[method-assign]
        with pytest.raises(IntegrityError, match="more than"):
            download(source, tmp_path, pause=no_pause)
    assert not (tmp_path / NAME).exists()


def test_a_refusal_of_the_federation_is_not_tried_again(aggregator: AggregatorDouble, tmp_path: Path) -> None:
    aggregator.refuse["FetchBundle"] = NotAllowedError("not for this tier", hint="ask")
    with aggregator.connection() as connection, pytest.raises(NotAllowedError, match="not for this tier"):
        download(FederationSource(connection, "tiny-t2", 1), tmp_path, pause=no_pause)
