"""A guide as a test reads it: its command blocks in order, what each should print, and whether that was so.

`bash` blocks are run as written. The block without a language that follows one is what its commands print. It
is compared in form, with digests, dates, paths and numbers as placeholders, so that a page cannot drift from
the programs. A line `…` stands for any lines. `console` blocks are not run here: tests list them and why.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ANYTHING = "…"
# What differs from run to run → what stands for it. In this order.
_FORMS = (
    (re.compile(r"\b(?:fedmap\.example\.org|localhost)(?::\d+)?"), "HOST"),
    (re.compile(r"(?<=token)\s+\S+"), " TOKEN"),
    (re.compile(r"/d/\S+"), "LINK"),
    (re.compile(r"SHA256:[0-9A-F:…]+"), "FINGERPRINT"),
    (re.compile(r"\b[0-9a-f]{12,}…?|\b[0-9a-f]{2,}…"), "DIGEST"),
    (re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d UTC)?"), "DATE"),
    (re.compile(r"(?<![\w.])/[\w./-]*[\w-]"), "PATH"),
    (re.compile(r"\b[KMGT]iB\b"), "SIZE"),
    (re.compile(r"\d[\d,]*(\.\d+)?"), "N"),
    (re.compile(r"\s+"), " "),
)


@dataclass(frozen=True)
class Block:
    """Commands that stand together, and the lines that they should print; none: whatever they print."""

    commands: tuple[str, ...]
    prints: tuple[str, ...]

    def check(self, printed: str) -> None:
        """AssertionError with both sides where the printed lines have another form."""
        if not self.prints:
            return
        wanted, got = [form(line) for line in self.prints], [form(line) for line in printed.splitlines()]
        assert _fits(wanted, got), (
            f"{self.commands}\npage:\n" + "\n".join(wanted) + "\nprinted:\n" + "\n".join(got)
        )


def form(line: str) -> str:
    """A line without what differs from run to run."""
    for pattern, name in _FORMS:
        line = pattern.sub(name, line)
    return line.strip()


def blocks_of(page: str) -> list[Block]:
    """The `bash` blocks of a page, each with its expected output."""
    fences = _FENCE.findall((DOCS / page).read_text(encoding="utf-8"))
    found = []
    for place, (language, body) in enumerate(fences):
        if language != "bash":
            continue
        after = fences[place + 1] if place + 1 < len(fences) else ("end", "")
        found.append(Block(_commands(body), tuple(after[1].splitlines()) if not after[0] else ()))
    return found


def console_lines(page: str) -> list[str]:
    """Every command of the blocks that are not run here."""
    fences = _FENCE.findall((DOCS / page).read_text(encoding="utf-8"))
    return [line for language, body in fences if language == "console" for line in _commands(body)]


def words_of(command: str) -> list[str]:
    return shlex.split(command, comments=True)


def _commands(body: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in body.splitlines() if line.strip())


def _fits(wanted: list[str], got: list[str]) -> bool:
    """Line by line; `…` takes as many lines as it needs."""
    if not wanted:
        return not any(got)
    if wanted[0] == _ANYTHING:
        return any(_fits(wanted[1:], got[skip:]) for skip in range(len(got) + 1))
    return bool(got) and wanted[0] == got[0] and _fits(wanted[1:], got[1:])
