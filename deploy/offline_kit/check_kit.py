"""Is this kit whole, and does it fit this machine? `python3 check_kit.py` in the unpacked folder says so.

It travels inside the kit, so it uses nothing but the standard library. It compares every file with SHA256SUMS
and refuses files that the list does not name: pip would find a strange wheel. It proves that the kit arrived
as it was packed, not who packed it: for that, compare the archive's own digest with the one you were told.

Exit codes: 0 whole; 1 damaged, with every fault; 2 wrong usage.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
from pathlib import Path

SUMS = "SHA256SUMS"
FACTS = "kit.json"
_LINE = re.compile(r"([0-9a-f]{64})  ([^\\\r\n]+)")
_SAFE = re.compile(r"[\w+.-]+(/[\w+.-]+)*")


def damages(folder: Path) -> list[str]:
    """Every difference between the folder and its list; empty where the kit is whole."""
    try:
        text = (folder / SUMS).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return [f"{SUMS}: missing or unreadable"]
    listed, found = _listed(text)
    present = {path.relative_to(folder).as_posix(): path for path in _files(folder)}
    present.pop(SUMS, None)
    found += [f"{name}: missing" for name in sorted(listed.keys() - present.keys())]
    found += [f"{name}: not in {SUMS}" for name in sorted(present.keys() - listed.keys())]
    for name in sorted(listed.keys() & present.keys()):
        path = present[name]
        if path.is_symlink() or not path.is_file():
            found.append(f"{name}: not a plain file")
        elif _sha256(path) != listed[name]:
            found.append(f"{name}: changed")
    return found


def misfits(folder: Path) -> list[str]:
    """Why the wheels would not install with this Python; empty where they would."""
    facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    wanted = facts["python"]
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    found = []
    if here != wanted or platform.python_implementation() != "CPython":
        found.append(f"they need CPython {wanted}, this is {platform.python_implementation()} {here}")
    if (sys.platform, platform.machine()) != ("linux", facts["machine"]):
        found.append(f"they need linux {facts['machine']}, this is {sys.platform} {platform.machine()}")
    name, version = platform.libc_ver()
    if name != "glibc" or _numbers(version) < _numbers(facts["glibc"]):
        found.append(
            f"they need glibc {facts['glibc']} or newer, this is {name or 'another C library'} {version}"
        )
    return found


def main(arguments: list[str]) -> int:
    """Prints what was found."""
    if len(arguments) > 1:
        sys.stderr.write("usage: check_kit.py [FOLDER]\n")
        return 2
    folder = Path(arguments[0]) if arguments else Path(__file__).resolve().parent
    found = damages(folder)
    if found:
        sys.stderr.write("".join(f"damaged: {line}\n" for line in found))
        sys.stderr.write(
            "Do not install it. Unpack the archive again; if that does not help, copy it again.\n"
        )
        return 1
    sys.stdout.write("The kit is whole: every file is as it was packed, and there is none besides.\n")
    reasons = misfits(folder)
    for reason in reasons:
        sys.stdout.write(f"The wheels do not fit this machine: {reason}. Use the container.\n")
    if not reasons:
        sys.stdout.write("The wheels fit this machine.\n")
    return 0


def _listed(text: str) -> tuple[dict[str, str], list[str]]:
    """(digest by name, faults of the list itself)."""
    listed: dict[str, str] = {}
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        match = _LINE.fullmatch(line)
        name = match.group(2) if match else ""
        parts = name.split("/")
        if match is None or not _SAFE.fullmatch(name) or ".." in parts or "." in parts or name in listed:
            found.append(f"{SUMS}: line {number} cannot be used")
        else:
            listed[name] = match.group(1)
    if not listed:
        found.append(f"{SUMS}: names no file")
    return listed, found


def _files(folder: Path) -> list[Path]:
    """Everything below the folder that is not a plain folder; links are never followed."""
    found = []
    for place, folders, names in os.walk(folder):
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        found += [Path(place) / name for name in (*names, *links)]
    return found


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
