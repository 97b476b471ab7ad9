"""What every answer of the bundle pages has in common: its security headers, and errors in plain words."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedmap.errors import (
    FedmapError,
    LimitError,
    NotAllowedError,
    NotFoundError,
    ServiceError,
    StateError,
    StorageError,
    TokenError,
)

# No script, no foreign resource, no frame, no form: the pages are text, a style sheet and a picture of ours.
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-robots-tag": "noindex, nofollow",
}
LINKS = "/d/"
"""Where download links begin. Their addresses are secrets: nothing under them is kept by a browser."""

_STATUS: tuple[tuple[type[FedmapError], int], ...] = (
    (NotFoundError, 404),
    (TokenError, 404),
    (NotAllowedError, 403),
    (StateError, 410),
    (LimitError, 429),
    (StorageError, 503),
)


class SecurityHeaders:
    """Adds the headers above to each answer of an application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                if scope["path"].startswith(LINKS):
                    headers["cache-control"] = "no-store"
                else:
                    headers.setdefault("cache-control", "private, no-cache")
            await send(message)

        await self._app(scope, receive, with_headers)


def status_of(error: FedmapError) -> int:
    """The HTTP status that says the same."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def public_words(error: FedmapError) -> tuple[str, str, str]:
    """Code, message and hint for a visitor. What is wrong inside the server is not told to strangers."""
    if isinstance(error, ServiceError):
        return error.code, _sentence(error.message), _sentence(error.hint)
    return error.code, "The server cannot do this now.", "Try again later; tell who runs it if it goes on."


def _sentence(text: str) -> str:
    """Messages of the log begin small and end open; on a page they are sentences."""
    whole = text[:1].upper() + text[1:]
    return whole if whole.endswith((".", "!", "?", ":")) else f"{whole}."


def wants_json(request: Request) -> bool:
    """Whether a program asks that reads JSON, and not a person's browser."""
    accepted = request.headers.get("accept", "")
    asked = "application/json" in accepted and "text/html" not in accepted
    return asked or request.url.path.endswith(".json")
