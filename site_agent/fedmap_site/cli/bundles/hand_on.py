"""`fedmap-site serve-bundles`: hand installed bundles to clinics inside the own network, until stopped."""

from __future__ import annotations

import signal

import typer

from fedmap.process.command_line import print_aside
from fedmap.process.ending import INTERRUPTED
from fedmap_site.cli.bundles.options import AtShelf, now_ms

_LOOK_SECONDS = 3600.0


def serve_bundles_command(given: AtShelf) -> None:
    """Hand the installed bundles to the clinics on your access list, over HTTPS, until stopped."""
    settings = given.settings()
    from fedmap.process.log import configure
    from fedmap_site.bundles.server import StoreCatalogue, make_server
    from fedmap_site.loop.stopping import Stop

    section = settings.bundles.serve
    catalogue = StoreCatalogue(given.shelf(), section.allow, now_ms)
    server = make_server(catalogue, section, f"Bundles of {settings.site.name}")
    stop = Stop()
    stop.install()
    configure(settings.log.level, service="site")
    left_out = catalogue.not_served()
    server.start()
    try:
        given.tell(
            {"event": "serving", "port": server.port, "allow": section.allow, "not_served": left_out},
            f"Serving bundles on {section.listen} (port {server.port}) to {', '.join(section.allow)}.",
            indent=None,
        )
        if not given.as_json:
            print_aside(*(f"not served: {line}" for line in left_out))
        while not stop:
            stop.wait(_LOOK_SECONDS)
    finally:
        server.stop()
    if stop.signal is signal.SIGINT:
        raise typer.Exit(INTERRUPTED)
