"""`fedmap-site serve | serve-bundles`: predictions for own systems, bundles for clinics, until stopped."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from fedmap.process.command_line import print_aside
from fedmap.process.ending import INTERRUPTED
from fedmap_site.cli.options import (
    AtShelf,
    BundleOption,
    ModelOption,
    Trusting,
    now_ms,
    refuse_if_withdrawn,
)

_LOOK_SECONDS = 10.0  # how often the list of withdrawn bundles is looked at


def serve_command(
    given: Trusting,
    certificate: Annotated[
        Path, typer.Option("--certificate", exists=True, dir_okay=False, help="PEM, with its chain.")
    ],
    key: Annotated[Path, typer.Option("--key", exists=True, dir_okay=False, help="Its private key, PEM.")],
    token_file: Annotated[
        Path, typer.Option("--token-file", dir_okay=False, help="Secret that callers send; made if absent.")
    ],
    bundle: BundleOption = None,
    model: ModelOption = None,
    listen: Annotated[
        str, typer.Option("--listen", help="HOST:PORT; other machines reach it only if HOST says so.")
    ] = "127.0.0.1:8444",
) -> None:
    """Answer requests for predictions: JSON in, JSON out. Logs are JSON lines without any row.

    Ends with an error when the model's bundle is withdrawn while it is served.
    """
    ready = given.model(bundle, model)
    from fedmap.process.log import configure
    from fedmap.web.https_server import HttpsServer
    from fedmap_site.loop.stopping import Stop
    from fedmap_site.predict.server import LIMITS, make_prediction_app, token_of
    from fedmap_site.predict.service import PredictionService
    from fedmap_site.wiring import software_version

    shelf = given.shelf()
    stop = Stop()
    stop.install()
    configure("info", service="predictions")
    service = PredictionService(ready, now_ms)
    token, made = token_of(token_file)
    app = make_prediction_app(service, token, software_version())
    server = HttpsServer(listen, app, (certificate, key), limits=LIMITS)
    server.start()
    try:
        host = listen.rpartition(":")[0]
        given.tell(
            {"event": "serving", "model": ready.name, "port": server.port, "token_made": made},
            f"Serving {ready.name} on https://{host}:{server.port}/ (open it for the description).",
            f"Token: {token_file}{' (made now)' if made else ''}. Stop with Ctrl-C.",
        )
        while not stop:
            refuse_if_withdrawn(shelf, ready.name)
            stop.wait(_LOOK_SECONDS)
    finally:
        server.stop()
    if stop.signal is signal.SIGINT:
        raise typer.Exit(INTERRUPTED)


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
