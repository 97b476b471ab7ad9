"""SHA-256 in lower-case hex: the only digest that FedMAP writes, sends or compares."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from fedmap.files.durable import storage_errors

_DIGEST = re.compile(r"[0-9a-f]{64}")


def sha256_hex(data: bytes | memoryview) -> str:
    """Of bytes in memory."""
    return hashlib.sha256(data).hexdigest()


def file_sha256(path: Path) -> str:
    """Of a file, read in pieces; what cannot be read is a `StorageError`."""
    with storage_errors(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_digest(text: str) -> bool:
    """Whether the text has the form of a digest. What comes from a peer is asked before it names a file."""
    return _DIGEST.fullmatch(text) is not None
