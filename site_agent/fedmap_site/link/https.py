"""HTTPS as a client, for downloads: one server, one question on a connection of its own, failures typed.

Only the host that was named: no redirection is followed, and nothing of the environment counts but this
machine's own authorities, where none is given. A path may be a secret link, so no message quotes it.
The route that is dialled, here and for gRPC, comes from the settings: address, and the proxy or its file.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from fedmap.errors import (
    ConfigError,
    FedmapError,
    IntegrityError,
    LimitError,
    NotAllowedError,
    NotFoundError,
    RejectedError,
    ServiceError,
    StateError,
    TokenError,
    UnreachableError,
)
from fedmap.transport.client import Route
from fedmap_site.config import AggregatorSection

Answer = http.client.HTTPResponse
SECONDS = 30.0
MOST_BODY = 16 << 20
"""Of an answer that is read as a whole."""
_MOST_REFUSAL = 64 << 10
_CLEAN = re.compile(r"[\x21-\x7e]+")
PROXY = re.compile(r"http://([^\s/@]+@)?(\[[0-9a-fA-F:.]+\]|[^\s:/@]+):[0-9]{1,5}/?")
_REFUSALS: dict[int, type[ServiceError]] = {
    400: RejectedError,
    401: NotAllowedError,
    403: NotAllowedError,
    404: NotFoundError,
    410: StateError,
    429: LimitError,
}
_KINDS: tuple[type[ServiceError], ...] = (*_REFUSALS.values(), TokenError)
_CODES = {kind.code: kind for kind in _KINDS}


@dataclass(frozen=True)
class Way:
    """How a server is reached and believed."""

    authority: bytes | None = None
    """PEM to trust instead of the authorities of this machine."""
    certificate: Path | None = None
    """Shown to a server that asks for one; with `key`."""
    key: Path | None = None
    proxy: str = field(default="", repr=False)
    """http://[user:password@]host:port"""


@dataclass(frozen=True)
class Link:
    """The parts of an address."""

    host: str
    port: int
    path: str = field(repr=False)  # may hold a token

    @property
    def server(self) -> str:
        return f"{self.host}:{self.port}"


def parse_link(text: str) -> Link:
    """An https address without a password, a query or a fragment; else `ConfigError`."""
    problem = ""
    try:
        parts = urlsplit(text.strip())
        host, port = parts.hostname or "", parts.port or 443
    except ValueError:
        raise _no_link("it is not an address") from None
    if parts.scheme != "https":
        problem = "it does not begin with https://"
    elif not host or "@" in parts.netloc or parts.query or parts.fragment:
        problem = "it is not of the form https://host:port/path"
    elif not is_clean(f"{host}{parts.path}"):
        problem = "it holds characters that no address has"
    if problem:
        raise _no_link(problem)
    return Link(host, port, parts.path or "/")


def check_proxy(text: str) -> str:
    """The address of a proxy as it was typed; empty: none."""
    if text and PROXY.fullmatch(text) is None:
        raise ConfigError("--proxy", ("it is not http://host:port",), hint="Ask the network team for it.")
    return text


def is_clean(path: str) -> bool:
    """Whether the text can stand in a request line."""
    return _CLEAN.fullmatch(path) is not None


@contextmanager
def ask(link: Link, way: Way, method: str, path: str, headers: Mapping[str, str]) -> Iterator[Answer]:
    """One question to the link's server; what fails, also while the answer is read, comes out typed."""
    connection = _connection(link, way)
    try:
        connection.request(method, path, headers={"User-Agent": "fedmap-site", **headers})
        with connection.getresponse() as answer:
            yield answer
    except ssl.SSLCertVerificationError as error:
        raise _untrusted(link, error) from error
    except ssl.SSLError as error:
        raise UnreachableError(
            f"TLS with {link.server} failed",
            hint="Check the address. If the network inspects TLS, ask for an exception for this server.",
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise UnreachableError(
            f"{link.server} cannot be reached, or cut the connection",
            hint="Check the address and the network. A proxy is given as --proxy http://host:port. A broken "
            "download goes on where it stopped: run the command again.",
        ) from error
    finally:
        connection.close()


def expect(answer: Answer, *statuses: int) -> None:
    """Any other status is an error of our tree."""
    if answer.status not in statuses:
        raise _refusal(answer)


def whole_body(answer: Answer) -> bytes:
    expect(answer, 200)
    body = answer.read(MOST_BODY + 1)
    if len(body) > MOST_BODY:
        raise nonsense("its answer is too long")
    return body


def nonsense(what: str) -> IntegrityError:
    """For an answer that no FedMAP server gives."""
    return IntegrityError(
        f"the server's answer makes no sense: {what}", hint="Check the address: is it a FedMAP server?"
    )


def _connection(link: Link, way: Way) -> http.client.HTTPSConnection:
    context = _context(way)
    if not way.proxy:
        return http.client.HTTPSConnection(link.host, link.port, timeout=SECONDS, context=context)
    proxy = urlsplit(way.proxy)
    connection = http.client.HTTPSConnection(
        proxy.hostname or "", proxy.port or 3128, timeout=SECONDS, context=context
    )
    headers = {}
    if proxy.username is not None:
        login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {base64.b64encode(login.encode()).decode('ascii')}"
    connection.set_tunnel(link.host, link.port, headers)
    return connection


def _context(way: Way) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=way.authority.decode("ascii") if way.authority else None)
        if way.certificate is not None:
            context.load_cert_chain(way.certificate, way.key, password="")
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            "certificates", ("the authority or the certificate is not a PEM file",), hint="Check --ca FILE."
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _refusal(answer: Answer) -> FedmapError:
    """Our servers say in JSON what is wrong; of others only the status is known."""
    status = answer.status
    if 300 <= status < 400:
        return RejectedError(
            "the server sends this address on to another one, which is not followed",
            hint="Ask who runs it for the address itself.",
        )
    if status >= 500 or status in (408, 416):
        return UnreachableError(
            f"the server could not answer (status {status})", hint="Try again later; tell who runs it."
        )
    kind = _REFUSALS.get(status, RejectedError)
    try:
        said = json.loads(answer.read(_MOST_REFUSAL))
        message, hint, code = str(said["message"])[:500], str(said["hint"])[:500], str(said["code"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return kind(
            f"the server refused the request (status {status})",
            hint="Check the address. A download link works once, and only for a time: ask for a new one.",
        )
    return _CODES.get(code, kind)(_printable(message), hint=_printable(hint))


def _printable(text: str) -> str:
    """What a server says goes to a terminal: control characters stay out."""
    return "".join(character for character in text if character.isprintable() or character == "\n")


def _untrusted(link: Link, error: ssl.SSLCertVerificationError) -> FedmapError:
    reason = error.verify_message or "it cannot be verified"
    return NotAllowedError(
        f"the certificate of {link.server} is not trusted: {reason}",
        hint="Give the authority that the operator, or your hospital, named to you: --ca FILE. If the "
        "network inspects TLS, ask for an exception for this server. Do not go round this check.",
    )


def _no_link(problem: str) -> ConfigError:
    return ConfigError("--link", (problem,), hint="Copy the whole link as you got it, and nothing else.")


def route_of(section: AggregatorSection) -> Route:
    """Whom to dial, and through what. Nothing of the environment counts."""
    proxy = _proxy_in(section.proxy_file) if section.proxy_file is not None else section.proxy
    return Route(section.address, proxy.rstrip("/"))


def shown_proxy(route: Route) -> str:
    """The proxy for display: user and password stay out."""
    if not route.proxy:
        return "none"
    scheme, _, rest = route.proxy.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def _proxy_in(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            str(path),
            ("the proxy's file cannot be read",),
            hint="Correct [aggregator] proxy_file, or let the agent's account read it.",
        ) from error
    if PROXY.fullmatch(text) is None:
        raise ConfigError(
            str(path),
            ("it does not hold the address of a proxy",),
            hint="Write one line: http://user:password@host:port",
        )
    return text
