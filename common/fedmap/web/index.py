"""The list of bundles for programs: what `/index.json` says. Fields are only ever added."""

from __future__ import annotations

from collections.abc import Sequence

from fedmap.web.catalogue import Entry

FORMAT = 1


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
        "name": manifest.name,
        "version": manifest.version,
        "file_name": manifest.file_name,
        "study": manifest.study,
        "title": manifest.title,
        "intended_use": manifest.intended_use,
        "tier": manifest.tier,
        "released_unix_ms": manifest.released_unix_ms,
        "expires_unix_ms": manifest.expires_unix_ms,
        "size": entry.size,
        "sha256": entry.sha256,
        "may_download": entry.may_download,
        "withdrawn": entry.withdrawn,
        "path": f"{base}/{manifest.file_name}",
        "performance": [tier.model_dump(mode="json") for tier in manifest.performance],
    }
