"""Is the aggregator of a configuration up? Asked from its own machine, as health checks of containers do.

Where [metrics] listens, /readyz is asked: it knows most. Otherwise the standard gRPC health service is, over
mutual TLS with the public joining certificate: it is valid for as long as the authority, and opens nothing
else. Nothing is changed, and no file is read that only the service needs.
"""

from __future__ import annotations

from http import HTTPStatus
from http.client import HTTPException

from fedmap.errors import StateError, UnreachableError
from fedmap.files.durable import read_file
from fedmap.process.addresses import host_of, port_of
from fedmap.process.telemetry import ask
from fedmap.trust.certificates import pem_blocks
from fedmap_aggregator.config import AggregatorConfig
from fedmap_aggregator.identity.initialise import joining_path
from fedmap_aggregator.identity.profile import OperatorProfile
from fedmap_aggregator.operator.client import OperatorClient

_ANY = ("0.0.0.0", "::")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def check_health(config: AggregatorConfig, seconds: float) -> str:
    """What answered; UnreachableError where nothing does, StateError where it is not ready."""
    if config.metrics.listen:
        return _readyz(config.metrics.listen, seconds)
    if config.pki.external is not None:
        raise StateError(
            "with certificates of your own PKI there is none that a health check could use",
            hint="set metrics.listen, such as 127.0.0.1:9464: /readyz is asked then",
        )
    return _health_service(config, seconds)


def _readyz(listen: str, seconds: float) -> str:
    host, port = host_of(listen), port_of(listen)
    try:
        status, text = ask("localhost" if host in _ANY else host, port, "/readyz", seconds)
    except (OSError, HTTPException) as error:
        raise UnreachableError(
            f"/readyz at {listen} does not answer", hint="is `fedmap-aggregator serve` running? Read its log"
        ) from error
    if status != HTTPStatus.OK:
        raise StateError(f"the aggregator is not ready: {text}", hint="read its log; a restart loses nothing")
    return f"/readyz at {listen} says that it is ready"


def _health_service(config: AggregatorConfig, seconds: float) -> str:
    near = host_of(config.listen) in (*_ANY, *_LOOPBACK)  # names that our own certificates always hold
    address = f"localhost:{port_of(config.listen)}" if near else config.server.address
    ca, certificate, key = (pem.decode() for _, pem in pem_blocks(read_file(joining_path(config))))
    with OperatorClient(OperatorProfile("joining", address, ca, certificate, key)) as client:
        if not client.is_serving(seconds):
            raise StateError(
                "the aggregator says that it is not serving", hint="it starts or stops; read its log"
            )
    return f"{config.listen} is serving"
