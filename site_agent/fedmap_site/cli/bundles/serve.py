"""`fedmap-site serve`: predictions over HTTPS for the hospital's own systems, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from fedmap_site.cli.bundles.shelf import Fingerprint, Store, now_ms, open_store, refuse_if_withdrawn
from fedmap_site.cli.bundles.source import BundleOption, ModelOption, ready_model
from fedmap_site.cli.output import DEFAULT_CONFIG, Config, Json, print_json, print_text

_INTERRUPTED = 130
_LOOK_SECONDS = 10.0  # how often the list of withdrawn bundles is looked at


def serve_command(
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
    store: Store = None,
    fingerprint: Fingerprint = "",
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Answer requests for predictions: JSON in, JSON out. Logs are JSON lines without any row.

    Ends with an error when the model's bundle is withdrawn while it is served.
    """
    ready = ready_model(bundle, model, store, fingerprint, config)
    from fedmap.process.log import configure
    from fedmap.web.https_server import HttpsServer
    from fedmap_site.loop.stopping import Stop
    from fedmap_site.predict.server import LIMITS, make_prediction_app
    from fedmap_site.predict.service import PredictionService
    from fedmap_site.predict.token import token_of
    from fedmap_site.wiring import software_version

    shelf = open_store(store, config)
    stop = Stop()
    stop.install()
    configure("info", service="predictions")
    service = PredictionService(ready, now_ms)
    token, made = token_of(token_file)
    app = make_prediction_app(service, token, software_version())
    server = HttpsServer(listen, app, (certificate, key), limits=LIMITS)
    server.start()
    try:
        if as_json:
            print_json({"event": "serving", "model": ready.name, "port": server.port, "token_made": made})
        else:
            host = listen.rpartition(":")[0]
            print_text(
                f"Serving {ready.name} on https://{host}:{server.port}/ (open it for the description)."
            )
            print_text(f"Token: {token_file}{' (made now)' if made else ''}. Stop with Ctrl-C.")
        while not stop:
            refuse_if_withdrawn(shelf, ready.name)
            stop.wait(_LOOK_SECONDS)
    finally:
        server.stop()
    if stop.signal is signal.SIGINT:
        raise typer.Exit(_INTERRUPTED)
