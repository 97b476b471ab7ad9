"""`fedmap-site serve` over HTTP: thin answers around `service`.

    POST /v1/predict    predictions for rows as JSON; needs the token
    GET  /v1/model      what the model is; needs the token
    GET  /openapi.json  the same for generators of clients
    GET  /              the same for people
    GET  /healthz       the process runs

The description is no secret: it holds what the bundle's card holds. TLS and limits are `fedmap.web`'s.
Whoever has the token, one line in a file that only its owner can read, may ask for predictions.
"""

from __future__ import annotations

import hmac
import json
import secrets
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from fedmap.errors import ConfigError, DataError, FedmapError, LimitError
from fedmap.files.durable import read_file, storage_errors, write_durably
from fedmap.web.answers import SecurityHeaders, status_of
from fedmap.web.connection import Limits
from fedmap.web.pages import file_beside
from fedmap_site.predict.openapi import openapi, page
from fedmap_site.predict.service import PredictionService

LIMITS = Limits(max_body=64 << 20)
_JSON = "application/json"
_WORDS = {404: "There is nothing at this address.", 405: "This address does not take this method."}


def make_prediction_app(service: PredictionService, token: BearerToken, software_version: str) -> Starlette:
    """The application; the same for every request, whoever asks."""
    site = _Site(service, token, software_version)
    return Starlette(
        routes=[
            Route("/", site.home),
            Route("/style.css", site.style),
            Route("/openapi.json", site.openapi),
            Route("/healthz", site.healthy),
            Route("/v1/model", site.model),
            Route("/v1/predict", site.predict, methods=["POST"]),
        ],
        middleware=[Middleware(SecurityHeaders)],
        exception_handlers={FedmapError: _refused, HTTPException: _missing},
    )


class _Site:
    def __init__(self, service: PredictionService, token: BearerToken, software_version: str) -> None:
        self._service = service
        self._token = token
        self._page = page(service.ready)
        self._style = file_beside("style.css")
        self._openapi = openapi(service.ready, software_version)

    async def home(self, _request: Request) -> Response:
        return HTMLResponse(self._page)

    async def style(self, _request: Request) -> Response:
        return Response(self._style, media_type="text/css")

    async def openapi(self, _request: Request) -> Response:
        return JSONResponse(self._openapi)

    async def healthy(self, _request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def model(self, request: Request) -> Response:
        return self._stranger(request) or JSONResponse(self._service.describe(), headers=_PRIVATE)

    async def predict(self, request: Request) -> Response:
        stranger = self._stranger(request)
        if stranger is not None:
            return stranger
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != _JSON:
            return _problem(415, "content_type", f"The content type must be {_JSON}.", "Set Content-Type.")
        body = await request.body()
        return await run_in_threadpool(self._answer, body)

    def _answer(self, body: bytes) -> Response:
        answer = json.dumps(self._service.predict(body), ensure_ascii=False, allow_nan=False)
        return Response(answer, media_type=_JSON, headers=_PRIVATE)

    def _stranger(self, request: Request) -> Response | None:
        """The refusal of who does not know the token."""
        if self._token.admits(request.headers.get("authorization", "")):
            return None
        hint = "Send the header Authorization: Bearer TOKEN, with the token of the service's token file."
        answer = _problem(401, "not_allowed", "The token is missing or wrong.", hint)
        answer.headers["www-authenticate"] = "Bearer"
        return answer


_PRIVATE = {"cache-control": "no-store"}


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, FedmapError)
    if isinstance(error, DataError):
        return _problem(422, error.code, error.message, error.hint, error.problems)
    return _problem(
        413 if isinstance(error, LimitError) else status_of(error), error.code, error.message, error.hint
    )


async def _missing(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = _WORDS.get(error.status_code, "The request cannot be answered.")
    return _problem(error.status_code, "not_found", words, "GET /openapi.json lists what there is.")


def _problem(status: int, code: str, message: str, hint: str, problems: tuple[str, ...] = ()) -> JSONResponse:
    form = {"code": code, "message": message, "hint": hint, **({"problems": problems} if problems else {})}
    return JSONResponse(form, status, headers=_PRIVATE)


_LEAST, _MOST = 20, 200
_OTHERS = 0o077


@dataclass(frozen=True)
class BearerToken:
    """Compared in constant time, and never shown."""

    _secret: bytes

    def admits(self, authorization: str) -> bool:
        """Whether a request's Authorization header holds it."""
        kind, _, given = authorization.partition(" ")
        # Both are looked at in any case, so that the time tells nothing.
        right = hmac.compare_digest(given.strip().encode("utf-8", "replace"), self._secret)
        return right and kind.lower() == "bearer"

    def __repr__(self) -> str:
        return "BearerToken(…)"


def token_of(path: Path) -> tuple[BearerToken, bool]:
    """The token of a file, and whether it was made just now."""
    made = not path.exists()
    if made:
        write_durably(path, secrets.token_urlsafe(32).encode() + b"\n")
    with storage_errors(path):
        mode = path.stat().st_mode
    secret = read_file(path).strip()
    problems = []
    if mode & _OTHERS:
        problems.append("others than its owner may read or write the file")
    if not _LEAST <= len(secret) <= _MOST or not secret.isascii() or len(secret.split()) != 1:
        problems.append(f"must hold one word of {_LEAST} to {_MOST} letters and digits")
    if problems:
        raise ConfigError(
            str(path), tuple(problems), hint=f"chmod 600 {path}; or delete it, and a new token is made."
        )
    return BearerToken(secret), made
