"""host:port as people write it into a configuration: checked, and in its parts. Nothing is opened."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

from fedmap.errors import ConfigError

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
