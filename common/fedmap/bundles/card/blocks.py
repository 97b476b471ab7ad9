"""What a model card is made of: one value, which a template shows as markdown and another as a page.

Text from elsewhere is cleaned here, once: it reads the same in both, and is markup in neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

_NUMBERS = frozenset({"Rows", "Events", "Value", "95 % interval", "Sites", "Predicted", "Observed"})
_TAG = re.compile(r"<(?=[A-Za-z/!?])")


def plain(text: str) -> str:
    """One line that holds no tag, link or picture, and reads the same as text and as a page."""
    line = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    return _TAG.sub("< ", line).replace("](", "] (").replace("][", "] [")


@dataclass(frozen=True)
class Paragraph:
    """Words of ours, with `code`; text from elsewhere in them is `plain`."""

    text: str
    kind: ClassVar = "paragraph"


@dataclass(frozen=True)
class Bullets:
    points: tuple[str, ...]
    kind: ClassVar = "bullets"

    @classmethod
    def of(cls, points: Iterable[str]) -> Bullets:
        return cls(tuple(map(plain, points)))


@dataclass(frozen=True)
class Table:
    heading: tuple[str, ...]
    """Empty words: a table without a head."""
    rows: tuple[tuple[str, ...], ...]
    kind: ClassVar = "table"

    @classmethod
    def of(cls, heading: Sequence[str], rows: Iterable[Iterable[str]]) -> Table:
        return cls(tuple(heading), tuple(tuple(map(plain, row)) for row in rows))

    @property
    def numbers(self) -> tuple[bool, ...]:
        """Which columns stand to the right."""
        return tuple(name in _NUMBERS for name in self.heading)


@dataclass(frozen=True)
class Code:
    text: str
    kind: ClassVar = "code"


@dataclass(frozen=True)
class Picture:
    """A file of the bundle."""

    file_name: str
    words: str
    kind: ClassVar = "picture"


Block = Paragraph | Bullets | Table | Code | Picture


@dataclass(frozen=True)
class Section:
    heading: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Card:
    title: str
    about: str
    sections: tuple[Section, ...]
