"""A bundle as an HTTP answer: ranges, a strong ETag, and a word to the catalogue when it has arrived."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import FileResponse, Response
from starlette.types import Message, Receive, Scope, Send

from fedmap.files.durable import storage_errors

MEDIA_TYPE = "application/vnd.fedmap.bundle"


class BundleResponse(FileResponse):
    """`on_delivered` is called once the client has the file's last byte, also when only its end was asked."""

    chunk_size = 256 * 1024
    max_ranges = 1  # more at once are answered with the whole file, as the standard lets us

    def __init__(self, path: Path, file_name: str, sha256: str, on_delivered: Callable[[], None]) -> None:
        with storage_errors(path):
            found = os.stat(path)
        self._kept = {"etag": f'"{sha256}"', "cache-control": "private, no-cache"}
        super().__init__(
            path, headers=self._kept, media_type=MEDIA_TYPE, filename=file_name, stat_result=found
        )
        self._on_delivered = on_delivered
        self._size = found.st_size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.headers["etag"] in Headers(scope=scope).get("if-none-match", ""):
            await Response(status_code=304, headers=self._kept)(scope, receive, send)
            return
        progress = _Progress(send, self._size)
        await super().__call__(scope, receive, progress.send)
        if scope["method"] == "GET" and progress.to_the_end:
            delivered: Callable[[], Awaitable[bool]] = scope["state"]["delivered"]
            if await delivered():
                await run_in_threadpool(self._on_delivered)
        await progress.complete()


class _Progress:
    """Follows which bytes of the file were sent, and keeps back the word that the answer is complete.

    An answer of known length is whole for the client without that word; but after it the server may close the
    connection, and nobody could ask any more what has arrived.
    """

    def __init__(self, forward: Send, size: int) -> None:
        self._forward = forward
        self._size = size
        self._position: int | None = None
        self._ended = False

    @property
    def to_the_end(self) -> bool:
        return self._ended and self._position == self._size

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._position = _first_byte(message)
        else:
            if self._position is not None:
                self._position += len(message.get("body", b""))
            self._ended = not message.get("more_body", False)
            message = {**message, "more_body": True}
        await self._forward(message)

    async def complete(self) -> None:
        if self._ended:
            await self._forward({"type": "http.response.body", "body": b"", "more_body": False})


def _first_byte(start: Message) -> int | None:
    """Which byte of the file comes first; None where the answer is not of the file's bytes."""
    if start["status"] == 200:
        return 0
    if start["status"] == 206:
        span = dict(start["headers"])[b"content-range"].decode("ascii").removeprefix("bytes ")
        return int(span.partition("-")[0])
    return None
