"""`fedmap-site serve-bundles`: hand installed bundles to clinics inside the own network, until stopped."""

from __future__ import annotations

import json
import signal
import sys

import typer

from fedmap_site.cli.bundles.shelf import Store, now_ms, open_store
from fedmap_site.cli.output import DEFAULT_CONFIG, Config, Json, load_config, print_text, say

INTERRUPTED = 130
_LOOK_SECONDS = 3600.0


def serve_bundles_command(
    store: Store = None, config: Config = DEFAULT_CONFIG, as_json: Json = False
) -> None:
    """Hand the installed bundles to the clinics on your access list, over HTTPS, until stopped."""
    settings = load_config(config)
    from fedmap.process.log import configure
    from fedmap_site.bundles.server import StoreCatalogue, make_server
    from fedmap_site.loop.stopping import Stop

    section = settings.bundles.serve
    catalogue = StoreCatalogue(open_store(store, config), section.allow, now_ms)
    server = make_server(catalogue, section, f"Bundles of {settings.site.name}")
    stop = Stop()
    stop.install()
    configure(settings.log.level, service="site")
    left_out = catalogue.not_served()
    server.start()
    try:
        facts = {"event": "serving", "port": server.port, "allow": list(section.allow)}
        if as_json:
            sys.stdout.write(json.dumps({**facts, "not_served": left_out}) + "\n")
            sys.stdout.flush()
        else:
            print_text(
                f"Serving bundles on {section.listen} (port {server.port}) to {', '.join(section.allow)}."
            )
            for line in left_out:
                say.print(f"not served: {line}", markup=False, highlight=False, soft_wrap=True)
        while not stop:
            stop.wait(_LOOK_SECONDS)
    finally:
        server.stop()
    if stop.signal is signal.SIGINT:
        raise typer.Exit(INTERRUPTED)
