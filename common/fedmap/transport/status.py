"""The one translator between FedMAP's errors and gRPC statuses, in both directions.

The server sends a status with a short public text, and the whole error as JSON in the trailer
`fedmap-error-bin`. The client gets back an error of the same class. A status without our trailer comes from
gRPC itself, a proxy or a firewall: it becomes the error whose hint names the likeliest cause.

What fails inside the server's own house (disk, database, configuration) is not told in detail to its callers.
"""

from __future__ import annotations

import json

import grpc

from fedmap.errors import (
    ConfigError,
    DataError,
    FedmapError,
    IncompatibleError,
    LimitError,
    NotAllowedError,
    PlanError,
    ServiceError,
    StorageError,
    UnreachableError,
)
from fedmap.transport.connection_faults import unreachable

TRAILER = "fedmap-error-bin"
MAX_MESSAGE_TEXT = 8_000
MAX_HINT_TEXT = 2_000
MAX_STATUS_TEXT = 300

Code = grpc.StatusCode
STATUS: dict[str, grpc.StatusCode] = {
    "fedmap": Code.INTERNAL,
    "plan": Code.INVALID_ARGUMENT,
    "data": Code.INVALID_ARGUMENT,
    "model": Code.INVALID_ARGUMENT,
    "training": Code.INTERNAL,
    "config": Code.UNAVAILABLE,
    "storage": Code.UNAVAILABLE,
    "unreachable": Code.UNAVAILABLE,
    "port": Code.UNAVAILABLE,
    "service": Code.FAILED_PRECONDITION,
    "token": Code.UNAUTHENTICATED,
    "not_allowed": Code.PERMISSION_DENIED,
    "not_found": Code.NOT_FOUND,
    "conflict": Code.ALREADY_EXISTS,
    "stale": Code.ABORTED,
    "state": Code.FAILED_PRECONDITION,
    "withdrawn": Code.FAILED_PRECONDITION,
    "rejected": Code.INVALID_ARGUMENT,
    "integrity": Code.DATA_LOSS,
    "limit": Code.RESOURCE_EXHAUSTED,
    "incompatible": Code.UNIMPLEMENTED,
}
# The server's own affairs: whoever called can only wait, and the operator reads the log.
_PRIVATE = (StorageError, ConfigError)

Trailers = tuple[tuple[str, str | bytes], ...]


def error_classes() -> dict[str, type[FedmapError]]:
    """Every class of the tree by its code."""
    found: dict[str, type[FedmapError]] = {}
    waiting: list[type[FedmapError]] = [FedmapError]
    while waiting:
        kind = waiting.pop()
        found[kind.code] = kind
        waiting += kind.__subclasses__()
    return found


_CLASSES = error_classes()


def public_error(error: FedmapError) -> FedmapError:
    """What the caller may know of an error."""
    if isinstance(error, _PRIVATE):
        return UnreachableError(
            "the aggregator cannot store or read its own files now",
            hint="Try again later; nothing is lost. The operator finds the cause in the aggregator's log.",
        )
    return error


def unexpected_error() -> FedmapError:
    """Stands for an exception that is not of our tree; its text stays in the server's log."""
    return FedmapError(
        "the aggregator failed in an unexpected way",
        hint="Try again later. If it goes on, the operator finds the cause in the aggregator's log.",
    )


def to_status(error: FedmapError) -> tuple[grpc.StatusCode, str]:
    """Status and public text of an error."""
    public = public_error(error)
    return STATUS[public.code], _shortened(public.message.partition("\n")[0], MAX_STATUS_TEXT)


def to_trailers(error: FedmapError) -> Trailers:
    """The trailing metadata that carries the whole public error."""
    public = public_error(error)
    body = {
        "code": public.code,
        "message": _shortened(public.message, MAX_MESSAGE_TEXT),
        "hint": _shortened(public.hint, MAX_HINT_TEXT),
    }
    return ((TRAILER, json.dumps(body, ensure_ascii=False).encode()),)


def typed_error(error: grpc.RpcError) -> FedmapError:
    """The error of our tree that a failed call stands for."""
    call: object = error  # what gRPC raises is both an error and a call, which its stubs deny
    if not isinstance(call, grpc.Call):
        return UnreachableError(
            "the call failed before it was sent", hint="Try again; check the aggregator's address."
        )
    return _from_trailers(call) or _without_trailer(call.code(), call.details() or "")


def _from_trailers(call: grpc.Call) -> FedmapError | None:
    for key, value in call.trailing_metadata() or ():
        if key == TRAILER:
            return _decoded(value if isinstance(value, bytes) else value.encode())
    return None


def _decoded(body: bytes) -> FedmapError | None:
    """The error in a trailer; None where the trailer makes no sense, and the status must do."""
    try:
        read = json.loads(body)
        code, message, hint = str(read["code"]), str(read["message"]), str(read["hint"])
    except (ValueError, KeyError, TypeError):
        return None
    kind = _CLASSES.get(code, ServiceError)  # a code of a newer version is still a refusal
    error = kind.__new__(kind)
    FedmapError.__init__(error, message, hint=hint)
    if isinstance(error, PlanError | DataError | ConfigError):
        lines = message.split("\n  - ")
        error.problems = tuple(lines[1:])
        if isinstance(error, DataError):
            error.site = lines[0].partition(":")[0]
    return error


def _without_trailer(status: grpc.StatusCode, details: str) -> FedmapError:
    """What gRPC itself, or something between the two sides, has to say."""
    text = _shortened(details.partition("\n")[0], MAX_STATUS_TEXT)
    if status in (Code.UNAUTHENTICATED, Code.PERMISSION_DENIED):
        return NotAllowedError(
            f"the call was refused on the way: {text}",
            hint="A proxy or firewall may ask for a login; ask the network team to let gRPC through.",
        )
    if status is Code.UNIMPLEMENTED:
        return IncompatibleError(
            "the other side does not know this call",
            hint="Check that the address is that of a FedMAP aggregator, and update the older side.",
        )
    if status is Code.RESOURCE_EXHAUSTED:
        return LimitError(f"a limit was reached: {text}", hint="Try again later, or with a smaller request.")
    return unreachable(status, details)


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
