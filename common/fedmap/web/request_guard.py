"""Around every web application: the limit on bodies, one line in the log per answer, and no quoting crash.

The log has the method, the status and the time; never a path, which may hold a download link's secret.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedmap.process.log import get_logger

TOO_LARGE = 413
_LARGE = "The request is too large."
_TELL = "Try again; tell who runs the server if it fails again."


class RequestGuard:
    """An ASGI application that guards another."""

    def __init__(self, app: ASGIApp, max_body: int) -> None:
        self._app = app
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        answer = _Answer(send)
        start = time.monotonic()
        try:
            if _announced_size(scope) > self._max_body:
                await answer.refuse(TOO_LARGE, "limit", _LARGE, "Send less at once.")
            else:
                await self._app(scope, _limited(receive, self._max_body), answer.send)
        except HTTPException as refusal:
            if refusal.status_code != TOO_LARGE or answer.status:
                raise
            await answer.refuse(TOO_LARGE, "limit", _LARGE, "Send less at once.")
        except Exception:
            get_logger().exception("web_request_failed")
            if not answer.status:
                await answer.refuse(500, "internal", "The server failed to answer.", _TELL)
            elif not answer.complete:
                raise  # half an answer is out: only cutting the connection tells the client
        finally:
            client = scope.get("client")
            get_logger().info(
                "web_answer",
                action=scope["method"][:10],
                status=answer.status,
                bytes=answer.size,
                seconds=round(time.monotonic() - start, 3),
                peer=client[0] if client else None,
            )


@dataclass
class _Answer:
    """What went out so far."""

    forward: Send
    status: int = 0
    size: int = 0
    complete: bool = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body":
            self.size += len(message.get("body", b""))
            self.complete = not message.get("more_body", False)
        await self.forward(message)

    async def refuse(self, status: int, code: str, message: str, hint: str) -> None:
        if self.status:
            raise RuntimeError("an answer has begun already")
        body = json.dumps({"code": code, "message": message, "hint": hint}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
            (b"connection", b"close"),
        ]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


def _announced_size(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value)  # the HTTP parser has let digits through only
    return 0


def _limited(receive: Receive, limit: int) -> Receive:
    taken = 0

    async def counted() -> Message:
        nonlocal taken
        message = await receive()
        if message["type"] == "http.request":
            taken += len(message.get("body", b""))
            if taken > limit:
                # The kind of error that every Starlette application answers in its own form.
                raise HTTPException(TOO_LARGE, _LARGE)
        return message

    return counted
