"""host:port as people write it into a configuration: checked, in its parts, and why it cannot be listened
on.

For the services at their start and for `doctor` before it. gRPC says only that it could not bind: the
system's own reason is found here by trying the same with a plain socket. Nothing is served here.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from typing import Annotated

from pydantic import AfterValidator

from fedmap.errors import ConfigError, PortError

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]@]+):([0-9]{1,5})")


def is_address(text: str) -> bool:
    found = _ADDRESS.fullmatch(text)
    return found is not None and int(found[2]) <= 65535


def _checked(text: str) -> str:
    if not is_address(text):
        raise ValueError("must be host:port, such as aggregator.example.org:8443")
    return text


HostPort = Annotated[str, AfterValidator(_checked)]
HostPortOrOff = Annotated[str, AfterValidator(lambda text: text and _checked(text))]


def split_listen(listen: str) -> tuple[str, int]:
    """The host and the port to bind; an empty host means every interface."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(
            "listen address", (f"{listen!r} is not host:port",), hint="Write it such as 127.0.0.1:9464."
        )
    return host.strip("[]"), int(port)


def host_of(address: str) -> str:
    """The host of host:port; an IPv6 address without its brackets."""
    return address.rpartition(":")[0].strip("[]")


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


_ANY = "0.0.0.0"


def port_error(listen: str, setting: str, error: OSError) -> PortError:
    """What the system says of a bind that failed, with the next step; `setting` is the key to change."""
    port = listen.rpartition(":")[2]
    if error.errno == errno.EADDRINUSE:
        return PortError(
            f"cannot listen on {listen}: another program uses this port",
            hint=f"Find it (`ss -ltnp sport = :{port}`) and stop it, or set another port as {setting}.",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return PortError(
            f"cannot listen on {listen}: user {os.geteuid()} may not use ports below 1024",
            hint=f"Set a port from 1024 on as {setting}, or give the account the right to bind low ports.",
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return PortError(
            f"cannot listen on {listen}: it is not an address of this machine",
            hint=f"Set an address of this machine as {setting}; 0.0.0.0 stands for all of them.",
        )
    if isinstance(error, socket.gaierror):
        return PortError(
            f"cannot listen on {listen}: the name cannot be resolved",
            hint=f"Write an address of this machine as {setting}, such as 127.0.0.1:{port}.",
        )
    reason = (error.strerror or str(error) or type(error).__name__).lower()
    return PortError(f"cannot listen on {listen}: {reason}", hint=f"Check the setting {setting}.")


def bind_fault(host: str, port: int, setting: str) -> PortError | None:
    """Whether an address could be bound now; None where it could."""
    try:
        bind(host, port).close()
    except OSError as error:
        return port_error(f"{host or _ANY}:{port}", setting, error)
    return None


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet. Raises OSError."""
    found = socket.getaddrinfo(host or _ANY, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _name, address = found[0]
    trial = socket.socket(family, kind, protocol)
    try:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        trial.bind(address)
    except OSError:
        trial.close()
        raise
    return trial
