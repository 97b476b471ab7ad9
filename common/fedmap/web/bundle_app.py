"""The pages and downloads of a bundle catalogue, as one web application.

    /                              what there is, for what, how good, how to check it
    /bundles/FILE                  the file; Range and ETag, so a broken download can be resumed
    /bundles/FILE/card             its model card, /bundles/FILE/calibration.svg its picture
    /d/TOKEN                       the same page for who holds a download link
    /d/TOKEN/FILE[/card|/...]      the same file, card and picture
    /index.json                    the list for programs; also /d/TOKEN when JSON is asked for
    /withdrawn.json                the signed list of withdrawn bundles
    /healthz                       the process runs

Who may see what is the catalogue's to say. Looking at a page never uses up a link: only the last byte does.
"""

from __future__ import annotations

import functools
import ipaddress
import time
from collections.abc import Callable, Sequence
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from fedmap.bundles.card.picture import calibration_svg
from fedmap.bundles.card.text import card_of
from fedmap.errors import FedmapError, NotAllowedError, NotFoundError, ServiceError
from fedmap.process.log import get_logger
from fedmap.web.answers import LINKS, SECURITY_HEADERS, SecurityHeaders, public_words, status_of, wants_json
from fedmap.web.bundle_response import BundleResponse
from fedmap.web.catalogue import Access, Catalogue, Entry, Visitor
from fedmap.web.pages import Pages, file_beside
from fedmap.web.wording import bundle_view

__all__ = ["Access", "Catalogue", "Entry", "Visitor", "make_bundle_app"]

_LONGEST_TOKEN = 200
_TITLES = {
    403: "You may not see this page",
    404: "There is nothing here",
    405: "This cannot be asked here",
    410: "This is no longer available",
    429: "Too many requests",
    503: "The server cannot answer now",
}


def make_bundle_app(catalogue: Catalogue, heading: str) -> Starlette:
    """The application for one catalogue; `heading` stands above every page."""
    site = _Site(catalogue, heading)
    routes = [
        Route("/", site.home),
        Route("/bundles/{file}", site.download),
        Route("/bundles/{file}/card", site.card),
        Route("/bundles/{file}/calibration.svg", site.picture),
        Route("/d/{token}", site.link),
        Route("/d/{token}/{file}", site.download),
        Route("/d/{token}/{file}/card", site.card),
        Route("/d/{token}/{file}/calibration.svg", site.picture),
        Route("/index.json", site.index),
        Route("/withdrawn.json", site.withdrawn),
        Route("/style.css", _fixed("style.css", "text/css")),
        Route("/icon.svg", _fixed("icon.svg", "image/svg+xml")),
        Route("/healthz", lambda _request: PlainTextResponse("ok\n")),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(SecurityHeaders)],
        exception_handlers={FedmapError: site.refused, HTTPException: site.missing, Exception: site.failed},
    )


class _Site:
    """The answers. Each is a plain function, run in a thread of its own: a catalogue may read files."""

    def __init__(self, catalogue: Catalogue, heading: str) -> None:
        self._catalogue = catalogue
        self._heading = heading
        self._pages = Pages(heading)

    def home(self, request: Request) -> Response:
        return self._listing(request, "bundles.html", "/bundles")

    def link(self, request: Request) -> Response:
        return self._listing(request, "link.html", _base(_visitor(request)))

    def index(self, request: Request) -> Response:
        return self._listing(request, "", "/bundles")

    def download(self, request: Request) -> Response:
        visitor, entry = self._wanted(request)
        name = entry.manifest.file_name
        path = self._catalogue.open(visitor, name)
        finished = functools.partial(self._catalogue.finished, visitor, name)
        return BundleResponse(path, name, entry.sha256, finished)

    def card(self, request: Request) -> Response:
        visitor, entry = self._wanted(request)
        home = _base(visitor) if visitor.token else "/"
        view, card = bundle_view(entry, _now_unix_ms()), card_of(entry.manifest)
        folder = f"{_base(visitor)}/{entry.manifest.file_name}"
        page = self._pages.page("card.html", bundle=view, card=card, folder=folder, home=home)
        return HTMLResponse(page)

    def picture(self, request: Request) -> Response:
        _visitor, entry = self._wanted(request)
        bins, title = entry.manifest.calibration, entry.manifest.title
        if not bins:
            raise NotFoundError(
                "The calibration of this model was not measured.", hint="Read its model card."
            )
        return Response(calibration_svg(bins, title), media_type="image/svg+xml")

    def withdrawn(self, _request: Request) -> Response:
        signed = self._catalogue.withdrawals()
        if signed is None:
            raise NotFoundError("No bundle has been withdrawn so far.", hint="There is nothing to do.")
        return Response(signed, media_type="application/json")

    def refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, FedmapError)
        if not isinstance(error, ServiceError):
            get_logger().error("web_request_failed", exc_info=error)
        return self._problem(request, status_of(error), *public_words(error))

    def missing(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            message = "The address is wrong, or what was here has been removed."
            hint = "Check the address, letter by letter, or go to the first page."
            return self._problem(request, 404, "not_found", message, hint)
        message = "This server has pages to read and files to download, and takes nothing else."
        return self._problem(request, error.status_code, "request", message, "Go to the first page.")

    def failed(self, request: Request, _error: Exception) -> Response:
        """The crash itself is logged by the server, which also sees it."""
        message, hint = "The server failed to answer.", "Try again; tell who runs it if it fails again."
        return self._problem(request, 500, "internal", message, hint)

    def _listing(self, request: Request, template: str, base: str) -> Response:
        visitor = self._admitted(request)
        entries = self._catalogue.entries(visitor)
        fingerprint = self._catalogue.key_fingerprint()
        if not template or wants_json(request):
            return JSONResponse(index_of(entries, self._heading, fingerprint, base))
        views = [bundle_view(entry, _now_unix_ms()) for entry in entries]
        return HTMLResponse(
            self._pages.page(
                template, bundles=views, base=base, fingerprint=fingerprint, address=str(request.url)
            )
        )

    def _admitted(self, request: Request) -> Visitor:
        """Who asks, where they may see the list or hold a link; what the link opens, the catalogue says."""
        visitor = _visitor(request)
        if not visitor.token:
            access = self._catalogue.allowed(visitor)
            if not access.listing:
                raise NotAllowedError(access.reason, hint=access.hint)
        return visitor

    def _wanted(self, request: Request) -> tuple[Visitor, Entry]:
        visitor = self._admitted(request)
        wanted = request.path_params["file"]
        for entry in self._catalogue.entries(visitor):
            if entry.manifest.file_name == wanted:
                return visitor, entry
        raise NotFoundError(
            "There is no such bundle, or none that you may see.", hint="Choose one from the list of bundles."
        )

    def _problem(self, request: Request, status: int, code: str, message: str, hint: str) -> Response:
        if wants_json(request):
            return JSONResponse({"code": code, "message": message, "hint": hint}, status)
        title = _TITLES.get(status, "The server could not answer")
        page = self._pages.page("problem.html", title=title, message=message, hint=hint, status=status)
        # A crash is answered outside the application's own layers, so the headers are given here too.
        return HTMLResponse(page, status, SECURITY_HEADERS)


def _fixed(name: str, media_type: str) -> Callable[[Request], Response]:
    content = file_beside(name)
    headers = {"cache-control": "max-age=3600"}
    return lambda _request: Response(content, media_type=media_type, headers=headers)


def _visitor(request: Request) -> Visitor:
    token = str(request.path_params.get("token", ""))
    if len(token) > _LONGEST_TOKEN:
        raise NotFoundError("There is no such download link.", hint="Copy the whole link, and nothing else.")
    return Visitor(
        certificate_der=request.state.client_certificate,
        address=_plain_address(request.client.host if request.client else ""),
        token=token,
    )


def _plain_address(host: str) -> str:
    """On a socket for both worlds an IPv4 client looks like ::ffff:10.1.0.2; access lists say 10.1.0.2."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)


def _base(visitor: Visitor) -> str:
    """Where this visitor finds files, on this server."""
    return LINKS + quote(visitor.token, safe="") if visitor.token else "/bundles"


def _now_unix_ms() -> int:
    return time.time_ns() // 1_000_000


FORMAT = 1
_TOLD = {"name", "version", "study", "title", "intended_use", "tier", "performance"} | {
    f"{moment}_unix_ms" for moment in ("released", "expires")
}


# Fields are only ever added to `/index.json`.


def index_of(entries: Sequence[Entry], heading: str, key_fingerprint: str, base: str) -> dict[str, object]:
    """The JSON form; `base` is where the files are, on this server."""
    return {
        "format": FORMAT,
        "heading": heading,
        "key_fingerprint": key_fingerprint,
        "bundles": [_listed(entry, base) for entry in entries],
    }


def _listed(entry: Entry, base: str) -> dict[str, object]:
    manifest = entry.manifest
    return {
        **manifest.model_dump(mode="json", include=_TOLD),
        "file_name": manifest.file_name,
        "size": entry.size,
        "sha256": entry.sha256,
        "may_download": entry.may_download,
        "withdrawn": entry.withdrawn,
        "path": f"{base}/{manifest.file_name}",
    }
