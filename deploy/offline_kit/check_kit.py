"""Is this kit whole, and does it fit this machine? `python3 check_kit.py` in the unpacked folder says so.

It travels inside the kit, so it uses nothing but the standard library. It compares every file with SHA256SUMS
and refuses files that the list does not name: pip would find a strange wheel. It proves that the kit arrived
as it was packed, not who packed it: for that, compare the archive's own digest with the one you were told.

Exit codes: 0 whole; 1 damaged, with every fault; 2 wrong usage.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import sys
from pathlib import Path

SUMS = "SHA256SUMS"
FACTS = "kit.json"
_LINE = re.compile(r"([0-9a-f]{64})  (\S+)")


def damages(folder: Path) -> list[str]:
    """Every difference between the folder and its list; empty where the kit is whole."""
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return [f"{SUMS}: missing or unreadable"]
    listed: dict[str, str] = {}
    found = [] if lines else [f"{SUMS}: names no file"]
    for number, line in enumerate(lines, start=1):
        match = _LINE.fullmatch(line)
        if match is None or match.group(2) in listed:
            found.append(f"{SUMS}: line {number} cannot be used")
        else:
            listed[match.group(2)] = match.group(1)
    # Links are not followed: neither rglob nor what is asked of a path below leaves the folder.
    inside = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    present = {name for name, path in inside.items() if path.is_symlink() or not path.is_dir()} - {SUMS}
    found += [f"{name}: missing" for name in sorted(listed.keys() - present)]
    found += [f"{name}: not in {SUMS}" for name in sorted(present - listed.keys())]
    for name in sorted(listed.keys() & present):
        if inside[name].is_symlink() or not inside[name].is_file():
            found.append(f"{name}: not a plain file")
        elif _sha256(inside[name]) != listed[name]:
            found.append(f"{name}: changed")
    return found


def misfits(folder: Path) -> list[str]:
    """Why the wheels would not install with this Python; empty where they would."""
    facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    implementation, here = platform.python_implementation(), "{}.{}".format(*sys.version_info)
    library, version = platform.libc_ver()
    found = []
    if (implementation, here) != ("CPython", facts["python"]):
        found.append(f"they need CPython {facts['python']}, this is {implementation} {here}")
    if (sys.platform, platform.machine()) != ("linux", facts["machine"]):
        found.append(f"they need linux {facts['machine']}, this is {sys.platform} {platform.machine()}")
    if library != "glibc" or _numbers(version) < _numbers(facts["glibc"]):
        told = f"{library or 'another C library'} {version}"
        found.append(f"they need glibc {facts['glibc']} or newer, this is {told}")
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
