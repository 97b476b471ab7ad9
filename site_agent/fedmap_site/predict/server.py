"""`fedmap-site serve` over HTTP: thin answers around `service`.

    POST /v1/predict    predictions for rows as JSON; needs the token
    GET  /v1/model      what the model is; needs the token
    GET  /openapi.json  the same for generators of clients
    GET  /              the same for people
    GET  /healthz       the process runs

The description is no secret: it holds what the bundle's card holds. TLS and limits are `fedmap.web`'s.
"""

from __future__ import annotations

import json

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from fedmap.errors import DataError, FedmapError, LimitError
from fedmap.web.answers import SecurityHeaders, status_of
from fedmap.web.connection import Limits
from fedmap.web.pages import file_beside
from fedmap_site.predict.openapi import openapi
from fedmap_site.predict.page import page
from fedmap_site.predict.service import PredictionService
from fedmap_site.predict.token import BearerToken

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
