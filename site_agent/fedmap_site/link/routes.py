"""From the settings to the route that is dialled: address, and the proxy from its setting or its file."""

from __future__ import annotations

from pathlib import Path

from fedmap.errors import ConfigError
from fedmap.transport.client import Route
from fedmap_site.config import AggregatorSection
from fedmap_site.link.https import PROXY


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
