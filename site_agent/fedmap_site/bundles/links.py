"""Bundles over HTTPS: a download link, the address of a file, or a page from which one is chosen by name.

    https://HOST/d/TOKEN            a link; what it opens is asked from the server
    https://HOST/bundles/FILE       a file
    https://HOST/                   a page of bundles

What arrives is not believed here: `download` completes the file, and verification judges it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from fedmap.bundles.manifest import SUFFIX
from fedmap.errors import NotFoundError, RejectedError, StateError, UnreachableError
from fedmap.files.digests import is_digest
from fedmap.names import shown
from fedmap_site.bundles.download import Bytes, Remote
from fedmap_site.link.https import Link, Way, ask, expect, is_clean, nonsense, whole_body

_BLOCK = 256 << 10
_JSON = {"Accept": "application/json"}


@dataclass(frozen=True)
class _Listed:
    """One bundle of a server's list."""

    name: str
    version: int
    path: str
    withdrawn: str


class WebSource:
    """One bundle of a web server; `name` and `version` choose where the address opens several."""

    def __init__(self, link: Link, way: Way, name: str = "", version: int | None = None) -> None:
        self._link = link
        self._way = way
        self._name = name
        self._version = version
        self._file = link.path if link.path.endswith(SUFFIX) else ""

    def look(self) -> Remote:
        """What the server says of the file."""
        if not self._file:
            self._file = self._chosen().path
        with ask(self._link, self._way, "HEAD", self._file, _JSON) as answer:
            if answer.status != 200:
                self._explain()
            expect(answer, 200)
            tag, length = answer.getheader("ETag", ""), answer.getheader("Content-Length", "")
        if not length.isdecimal():
            raise nonsense("it does not say how long the file is")
        digest = tag.strip('"')
        return Remote(
            file_name=unquote(self._file.rpartition("/")[2]),
            size=int(length),
            tag="" if tag.startswith("W/") else tag,
            sha256=digest if is_digest(digest) else "",
        )

    def read(self, remote: Remote, offset: int) -> tuple[int, Iterator[Bytes]]:
        """From the offset on, where the server still has the same file; else from its beginning."""
        parts = self._parts(remote, offset)
        start = next(parts)
        assert isinstance(start, int)
        return start, (part for part in parts if not isinstance(part, int))

    def withdrawals(self) -> bytes | None:
        """The server's signed list of withdrawn bundles, if it has one."""
        with ask(self._link, self._way, "GET", "/withdrawn.json", _JSON) as answer:
            return None if answer.status == 404 else whole_body(answer)

    def _parts(self, remote: Remote, offset: int) -> Iterator[int | Bytes]:
        """First where the bytes begin, then the bytes."""
        wanted = {"Range": f"bytes={offset}-", "If-Range": remote.tag} if offset else {}
        with ask(self._link, self._way, "GET", self._file, {**_JSON, **wanted}) as answer:
            expect(answer, 200, 206)
            if remote.tag and answer.getheader("ETag", "") != remote.tag:
                raise UnreachableError(
                    f"{remote.file_name} has changed on the server meanwhile",
                    hint="Run the command again: it starts anew.",
                )
            span = f"bytes {offset}-{remote.size - 1}/{remote.size}"
            if answer.status == 206 and (not wanted or answer.getheader("Content-Range", "") != span):
                raise nonsense("it sends another part of the file than was asked for")
            yield offset if answer.status == 206 else 0
            while block := answer.read(_BLOCK):
                yield block

    def _explain(self) -> None:
        """An answer to HEAD has no words: ask again for them, and take no byte of a file."""
        with ask(self._link, self._way, "GET", self._file, {**_JSON, "Range": "bytes=0-0"}) as answer:
            expect(answer, 200, 206)

    def _chosen(self) -> _Listed:
        """The bundle that is wanted; the newest version where none is named."""
        fitting = [
            one
            for one in self._listed()
            if self._name in ("", one.name) and self._version in (None, one.version)
        ]
        standing = [one for one in fitting if not one.withdrawn]
        names = sorted({one.name for one in standing})
        if len(names) > 1:
            raise RejectedError(
                f"{self._link.server} has several bundles: {', '.join(map(shown, names[:20]))}",
                hint="Name the one you want: `fedmap-site bundle fetch NAME --link URL`.",
            )
        if standing:
            return max(standing, key=lambda one: one.version)
        if fitting:
            raise StateError(
                f"the bundle was withdrawn: {shown(fitting[-1].withdrawn)}",
                hint="It must not be used any more. Ask the operator for a newer version.",
            )
        raise NotFoundError(
            f"{self._link.server} has no such bundle for you",
            hint="Open the address in a browser to see what it has.",
        )

    def _listed(self) -> list[_Listed]:
        path = "/index.json" if self._link.path == "/" else self._link.path
        with ask(self._link, self._way, "GET", path, _JSON) as answer:
            body = whole_body(answer)
        try:
            index = json.loads(body)
        except (ValueError, RecursionError):
            raise nonsense("its list of bundles cannot be read") from None
        found = []
        for entry in index.get("bundles", ()) if isinstance(index, dict) else ():
            match entry:
                case {"name": str(name), "version": int(version), "path": str(path), **others}:
                    if path.startswith("/") and path.endswith(SUFFIX) and is_clean(path):
                        found.append(_Listed(name, version, path, str(others.get("withdrawn", ""))))
        return found
