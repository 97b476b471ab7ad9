"""The way to the aggregator, step by step, so that `doctor` can name the step that fails.

1. the name of the proxy, or of the aggregator, resolves
2. its port answers
3. the proxy lets the connection through
4. a TLS handshake: the certificate comes from our authority, is within its dates and covers the name

Sockets and the standard library only, since gRPC says less about what went wrong. Nothing but a handshake is
sent. What the aggregator then thinks of this site is asked by `doctor` over the real connection.
"""

from __future__ import annotations

import base64
import socket
import ssl
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from cryptography import x509

from fedmap.process.addresses import host_of, port_of
from fedmap.process.findings import Finding, failed, passed
from fedmap.transport.client import Route
from fedmap.trust.certificates import alternative_names

SECONDS = 10.0
_EXPIRED, _NOT_YET = 10, 9  # OpenSSL's X509_V_ERR_ numbers
_OTHER_NAME = frozenset({62, 64})  # host name, IP address
_LOGIN = frozenset({401, 407})  # 407 is the standard's; some proxies say 401 to a wrong password
_INSPECTION = (
    "If a device on the way inspects TLS, ask the network team for an exception for this host and port. If "
    "the operator changed the authority, enrol again, or set [aggregator] ca_bundle."
)


@dataclass(frozen=True)
class Seen:
    """What the far end showed of itself."""

    issuer: str
    names: tuple[str, ...]


def check_way(route: Route, authority: bytes) -> list[Finding]:
    """The four steps, up to the first that fails."""
    found: list[Finding] = []
    try:
        _walk(route, authority, found)
    except _StepError as failure:
        found.append(failure.finding)
    return found


class _StepError(Exception):
    """Ends the walk with what was found."""

    def __init__(self, name: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.finding = failed(name, message, hint)


def _walk(route: Route, authority: bytes, found: list[Finding]) -> None:
    host, port = host_of(route.address), port_of(route.address)
    proxy = urlsplit(route.proxy) if route.proxy else None
    first_host, first_port = (proxy.hostname or "", proxy.port or 0) if proxy else (host, port)
    what = "proxy" if proxy else "aggregator"
    _resolve(first_host, first_port, what)  # (1)
    found.append(passed("name", f"{first_host} resolves"))
    with _dial(first_host, first_port, what):  # (2)
        found.append(passed("port", f"{first_host}:{first_port} answers"))
    if proxy:
        with _through(route, host, port):  # (3)
            found.append(passed("proxy", f"lets connections to {host}:{port} through"))
    _handshake(route, host, port, authority)  # (4)
    found.append(passed("tls", "the aggregator's certificate is from our authority and covers its name"))


def _resolve(host: str, port: int, what: str) -> None:
    try:
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise _StepError(
            "name",
            f"the name of the {what}, {host}, cannot be resolved",
            f"Check the spelling under [aggregator] {'proxy' if what == 'proxy' else 'address'}, and this "
            "machine's DNS; where DNS does not know outside names, a proxy is needed.",
        ) from error


def _dial(host: str, port: int, what: str) -> socket.socket:
    try:
        return socket.create_connection((host, port), timeout=SECONDS)
    except OSError as error:
        raise _StepError("port", *_unanswered(error, host, port, what)) from error


def _unanswered(error: OSError, host: str, port: int, what: str) -> tuple[str, str]:
    """Why a port does not answer, and what to do."""
    if isinstance(error, ConnectionRefusedError):
        key = "proxy" if what == "proxy" else "address"
        hint = f"Check the port under [aggregator] {key}, and that the {what} runs."
        return f"{host} refuses connections to port {port}", hint
    if isinstance(error, TimeoutError):
        hint = f"A firewall drops the packets: have outgoing TCP to {host}:{port} allowed."
        return f"{host}:{port} does not answer within {SECONDS:g} s", hint
    hint = "Check this machine's network and routes, and the firewall's rules for outgoing connections."
    return f"no way to {host}:{port}: {(error.strerror or 'the network failed').lower()}", hint


def _through(route: Route, host: str, port: int) -> socket.socket:
    """A connection to host:port: through the proxy where there is one."""
    if not route.proxy:
        return _dial(host, port, "aggregator")
    proxy = urlsplit(route.proxy)
    connection = _dial(proxy.hostname or "", proxy.port or 0, "proxy")
    try:
        status = _connect(connection, f"{host}:{port}", _login(proxy.username, proxy.password))
    except OSError as error:
        connection.close()
        raise _StepError(
            "proxy", "the proxy cuts the connection", "Check that [aggregator] proxy is an HTTP proxy."
        ) from error
    if status == 200:
        return connection
    connection.close()
    if status in _LOGIN and proxy.username is not None:
        hint = "It does not take the login: correct user and password in the file that proxy_file names."
    elif status in _LOGIN:
        hint = "It wants a login: put http://user:password@host:port into a file and name it as proxy_file."
    else:
        hint = f"Ask the network team to allow CONNECT to {host}:{port}."
    raise _StepError("proxy", f"the proxy refuses the connection (HTTP {status or 'unreadable'})", hint)


def _login(user: str | None, password: str | None) -> str:
    if user is None:
        return ""
    pair = f"{unquote(user)}:{unquote(password or '')}".encode()
    return f"Proxy-Authorization: Basic {base64.b64encode(pair).decode()}\r\n"


def _connect(connection: socket.socket, target: str, login: str) -> int:
    """Ask a proxy for a tunnel; its HTTP status, 0 where it does not speak HTTP."""
    connection.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{login}\r\n".encode())
    head = b""
    while b"\r\n\r\n" not in head and len(head) < 65536:
        piece = connection.recv(4096)
        if not piece:
            break
        head += piece
    words = head.split(b"\r\n", 1)[0].split()
    return int(words[1]) if len(words) > 1 and words[0].startswith(b"HTTP/") and words[1].isdigit() else 0


def _handshake(route: Route, host: str, port: int, authority: bytes) -> None:
    context = ssl.create_default_context(cadata=authority.decode("ascii", "replace"))
    context.set_alpn_protocols(["h2"])
    with _through(route, host, port) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=host):
                return
        except ssl.SSLCertVerificationError as error:
            code = error.verify_code
        except (ssl.SSLError, OSError) as error:
            raise _StepError(
                "tls",
                f"{host}:{port} does not complete a TLS handshake",
                "Check that address and port are the aggregator's, and that no device cuts TLS connections.",
            ) from error
    raise _StepError("tls", *_distrust(code, _look(route, host, port), host))


def _distrust(code: int, seen: Seen, host: str) -> tuple[str, str]:
    """Why the certificate that is shown does not count, and what to do."""
    if code in (_EXPIRED, _NOT_YET):
        when = "has ended" if code == _EXPIRED else "is not valid yet"
        hint = "Check this machine's clock first; if it is right, the operator has to renew the certificate."
        return f"the aggregator's certificate {when}, by this machine's clock", hint
    if code in _OTHER_NAME:
        names = ", ".join(seen.names) or "no name at all"
        hint = "Dial a name that it covers, or ask the operator for a certificate that covers this one."
        return f"the aggregator's certificate does not cover {host}; it covers {names}", hint
    shown = f"the certificate shown for {host} is not from our authority; its issuer is {seen.issuer}"
    return shown, _INSPECTION


def _look(route: Route, host: str, port: int) -> Seen:
    """The certificate that is shown, whoever made it. For display alone: nothing is sent to such a peer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with _through(route, host, port) as plain, context.wrap_socket(plain, server_hostname=host) as peer:
            shown = x509.load_der_x509_certificate(peer.getpeercert(binary_form=True) or b"")
            names = tuple(
                str(name.value)
                for name in alternative_names(shown.extensions)
                if isinstance(name, x509.DNSName | x509.IPAddress)
            )
            return Seen(shown.issuer.rfc4514_string() or "without a name", names)
    except (ssl.SSLError, OSError, ValueError):
        return Seen("unknown", ())
