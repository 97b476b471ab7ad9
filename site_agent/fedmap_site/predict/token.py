"""The secret of the local prediction service: one line in a file that only its owner can read.

Made on first use. Whoever has it may ask for predictions; it opens nothing else.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from pathlib import Path

from fedmap.errors import ConfigError
from fedmap.files.durable import read_file, storage_errors, write_durably

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
