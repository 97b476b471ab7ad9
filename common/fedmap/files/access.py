"""Why this account may not use a path: who it is, whose the path is, and what would let it in.

Most refusals come from a volume that belongs to another user number than the one that the container or unit
runs as, so both numbers are said. A path that is missing altogether is most often a disk or volume that was
not mounted. Only names, numbers and modes are looked at, never the content of a file.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def refused_to(path: Path) -> str:
    """Who runs this program, and who owns what stands in its way, as a sentence."""
    me = f"this program runs as user {os.geteuid()}"
    owner = _first_closed(path)
    if owner is None:
        return me
    closed, facts = owner
    return f"{me}, and {closed} belongs to user {facts.st_uid} with mode {stat.S_IMODE(facts.st_mode):o}"


def let_in(path: Path) -> str:
    """What whoever runs the machine can do about it."""
    me, owner = os.geteuid(), _first_closed(path)
    if owner is None or owner[1].st_uid == me:
        return f"Give user {me} access to {path} (chmod u+rwX)."
    closed, facts = owner
    if closed != path:  # never hand out a folder above it: it may be the whole system's
        if os.access(closed, os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            return f"Make it for user {me}: install -d -m 700 -o {me} {path}."
        return f"Let user {me} pass through {closed} (setfacl -m u:{me}:x {closed}), or put it elsewhere."
    give = f"Give it to user {me}: chown -R {me} {closed}"
    return f"{give}." if facts.st_uid == 0 else f"{give}; or run as user {facts.st_uid}."


def missing_mount(path: Path) -> str:
    """What is there of a path that should be there: an empty folder hints at a mount that is missing."""
    there = next((folder for folder in path.parents if folder.exists()), Path("/"))
    try:
        empty = not any(there.iterdir())
    except OSError:
        return "Check the path. Is the disk or volume mounted, and may this account look into it?"
    if there != path.parent:
        return f"Check the path: {there} has no such folder. Is the disk or volume mounted?"
    what = "is empty" if empty else "holds other things"
    return f"Check the path: {there} {what}. Is the disk or volume mounted?"


def _first_closed(path: Path) -> tuple[Path, os.stat_result] | None:
    """The first part of a path, from the top, that this account cannot use as it must."""
    last = None
    for part in (*reversed(path.parents), path):
        try:
            facts = part.stat()
        except OSError:
            return last  # it exists or not: the folder above it does not let us see
        last = (part, facts)
        needed = os.X_OK if part != path and part.is_dir() else os.R_OK | os.W_OK
        if not os.access(part, needed, effective_ids=os.access in os.supports_effective_ids):
            return last
    return last
