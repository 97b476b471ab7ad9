"""The site's key, certificate and authority on disk: always three files that belong together.

Each identity is a generation folder of its own under `identities`; `identity` is a link to the one in
force. A new one is written whole and durable first, then the link is switched in one rename: a process that
is killed at any point leaves the old identity or the new one, never a key without its certificate. Nothing
is checked here beyond that; who made the certificate is the business of `enrolment`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from dataclasses import dataclass, field
from pathlib import Path

from fedmap.errors import StateError
from fedmap.files.durable import (
    make_folder,
    read_file,
    storage_error,
    storage_errors,
    sync_folder,
    write_durably,
)

LOCK = "lock"
"""Held by the one agent that runs on a state folder."""
LINK = "identity"
GENERATIONS = "identities"
KEY, CERTIFICATE, AUTHORITY = "key.pem", "certificate.pem", "ca.pem"
_EXTERNAL = "external"
_UNFINISHED = ".new-"


@dataclass(frozen=True)
class SiteIdentity:
    """PEM texts. `external`: the certificate comes from the trust's own PKI, and is renewed there."""

    key: bytes = field(repr=False)
    certificate: bytes
    authority: bytes
    external: bool = False


def is_enrolled(state: Path) -> bool:
    path = state / LINK / CERTIFICATE
    try:
        return path.exists()
    except OSError as error:  # it may be there: this account is not let in
        raise storage_error(error, path) from error


def read_identity(state: Path) -> SiteIdentity:
    """The identity in force; `StateError` where the site has none yet."""
    folder = state / LINK
    if not is_enrolled(state):
        raise StateError(
            "this site has no certificate yet",
            hint=f"A site that had enrolled: is the volume with its state folder {state} mounted? A new one: "
            "run `fedmap-site enrol` with the joining file and the token of your invitation.",
        )
    # One look at the link, so that a switch in between cannot mix two generations.
    folder = folder.resolve()
    key, certificate, authority = (read_file(folder / name) for name in (KEY, CERTIFICATE, AUTHORITY))
    return SiteIdentity(key, certificate, authority, (folder / _EXTERNAL).exists())


def write_identity(state: Path, identity: SiteIdentity) -> None:
    """Put an identity in force, in one step; the one before it is then removed."""
    home = state / GENERATIONS
    make_folder(home)
    fresh = home / f"{_next_number(home):06d}"
    unfinished = home / f"{_UNFINISHED}{secrets.token_hex(4)}"
    make_folder(unfinished)
    write_durably(unfinished / KEY, identity.key)
    write_durably(unfinished / CERTIFICATE, identity.certificate)
    write_durably(unfinished / AUTHORITY, identity.authority)
    if identity.external:
        write_durably(unfinished / _EXTERNAL, b"")
    with storage_errors(state):
        unfinished.rename(fresh)
        sync_folder(home)
        link = home / f"{_UNFINISHED}{secrets.token_hex(4)}"
        link.symlink_to(Path(GENERATIONS) / fresh.name)
        _make_way(state / LINK)
        link.replace(state / LINK)
        sync_folder(state)
    remove_old_generations(state)


def remove_old_generations(state: Path) -> None:
    """Delete every generation that is not in force, and what a killed process left half made."""
    home, current = state / GENERATIONS, (state / LINK).resolve()
    with storage_errors(home):
        for path in home.iterdir() if home.is_dir() else ():
            if path.is_symlink():
                path.unlink()
            elif path.resolve() != current:
                shutil.rmtree(path)


def open_to_others(state: Path) -> tuple[str, ...]:
    """The identity files that other accounts on this machine can read."""
    private = [state / LINK / KEY, (state / LINK).resolve()]
    return tuple(
        path.name
        for path in private
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & (stat.S_IRWXG | stat.S_IRWXO)
    )


def _next_number(home: Path) -> int:
    numbers = [int(path.name) for path in home.iterdir() if path.name.isdecimal()]
    return max(numbers, default=0) + 1


def _make_way(link: Path) -> None:
    """A folder cannot be replaced by a link in one step; an empty one holds nothing that could be lost."""
    if link.is_dir() and not link.is_symlink():
        os.rmdir(link)
