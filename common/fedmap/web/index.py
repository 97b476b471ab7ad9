"""The list of bundles for programs: what `/index.json` says. Fields are only ever added."""

from __future__ import annotations

from collections.abc import Sequence

from fedmap.web.catalogue import Entry

FORMAT = 1
_TOLD = {"name", "version", "study", "title", "intended_use", "tier", "performance"} | {
    f"{moment}_unix_ms" for moment in ("released", "expires")
}


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
