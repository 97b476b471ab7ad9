"""The markdown of our own model cards as HTML: headings, paragraphs, bullets, tables, code and the picture.

Not a general converter, and no raw HTML: what is not understood is shown as the text it is, escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from markupsafe import Markup, escape

_HEADING = re.compile(r"(#{1,6}) +(.*)")
_BULLET = re.compile(r"[-*] +(.*)")
_TABLE_RULE = re.compile(r"\|( *:?-+:? *\|)+")
_FENCE = "```"
# One alternative each: a bar that parts no cells, code, a picture.
_INLINE = re.compile(r"\\(?P<bar>\|)|`(?P<code>[^`]+)`|!\[(?P<alt>[^\]]*)\]\((?P<picture>[^)\s]+)\)")
_NO_PICTURES: Mapping[str, str] = MappingProxyType({})


def to_html(text: str, pictures: Mapping[str, str] = _NO_PICTURES) -> Markup:
    """The text as HTML. Only pictures named in `pictures` are shown, from the address given there."""
    return Markup("\n").join(_blocks(_Lines(text.splitlines()), pictures))


def inline(text: str, pictures: Mapping[str, str] = _NO_PICTURES) -> Markup:
    """One line of text with its marks."""
    parts: list[Markup] = []
    end = 0
    for found in _INLINE.finditer(text):
        parts += [escape(text[end : found.start()]), _marked(found, pictures)]
        end = found.end()
    return Markup("").join([*parts, escape(text[end:])])


def _marked(found: re.Match[str], pictures: Mapping[str, str]) -> Markup:
    if found["bar"] is not None:
        return Markup("|")
    if found["code"] is not None:
        return Markup("<code>{}</code>").format(found["code"])
    address = pictures.get(found["picture"])
    if address is None:
        return escape(found[0])
    return Markup('<img src="{}" alt="{}">').format(address, found["alt"])


class _Lines:
    """The lines of a text, taken from the front."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._at = 0

    def peek(self, ahead: int = 0) -> str | None:
        place = self._at + ahead
        return self._lines[place] if place < len(self._lines) else None

    def take(self) -> str:
        self._at += 1
        return self._lines[self._at - 1]


def _blocks(lines: _Lines, pictures: Mapping[str, str]) -> Iterator[Markup]:
    while (line := lines.peek()) is not None:
        if not line.strip():
            lines.take()
        elif heading := _HEADING.fullmatch(line):
            lines.take()
            yield Markup("<h{0}>{1}</h{0}>").format(len(heading[1]), inline(heading[2], pictures))
        elif line.startswith(_FENCE):
            yield _code(lines)
        elif _is_table(lines):
            yield _table(lines, pictures)
        elif _BULLET.fullmatch(line):
            yield _bullets(lines, pictures)
        else:
            yield Markup("<p>{}</p>").format(inline(" ".join(_paragraph(lines)), pictures))


def _paragraph(lines: _Lines) -> Iterator[str]:
    """Its lines up to an empty one or to the start of something else; always at least one."""
    yield lines.take().strip()
    while (line := lines.peek()) is not None and not _starts_block(lines, line):
        yield lines.take().strip()


def _starts_block(lines: _Lines, line: str) -> bool:
    known = _HEADING.fullmatch(line) or _BULLET.fullmatch(line)
    return not line.strip() or known is not None or line.startswith(_FENCE) or _is_table(lines)


def _code(lines: _Lines) -> Markup:
    """What stands between two fences; a fence that nobody closes holds to the end."""
    lines.take()
    inside: list[str] = []
    while (line := lines.peek()) is not None:
        lines.take()
        if line.startswith(_FENCE):
            break
        inside.append(line)
    return Markup("<pre><code>{}</code></pre>").format("\n".join(inside))


def _bullets(lines: _Lines, pictures: Mapping[str, str]) -> Markup:
    items: list[Markup] = []
    while (line := lines.peek()) is not None and (item := _BULLET.fullmatch(line)):
        lines.take()
        items.append(Markup("<li>{}</li>").format(inline(item[1], pictures)))
    return Markup("<ul>\n{}\n</ul>").format(Markup("\n").join(items))


def _is_table(lines: _Lines) -> bool:
    head, rule = lines.peek(), lines.peek(1)
    return head is not None and head.startswith("|") and bool(rule and _TABLE_RULE.fullmatch(rule.strip()))


def _table(lines: _Lines, pictures: Mapping[str, str]) -> Markup:
    head = _cells(lines.take())
    figures = {place for place, mark in enumerate(_cells(lines.take())) if mark.endswith(":")}
    rows: list[list[str]] = []
    while (line := lines.peek()) is not None and line.startswith("|"):
        rows.append(_cells(lines.take()))

    def row(tag: Markup, texts: list[str]) -> Markup:
        cells = (
            Markup("<{}{}>{}</{}>").format(
                tag, Markup(' class="number"') if place in figures else "", inline(text, pictures), tag[:2]
            )
            for place, text in enumerate(texts)
        )
        return Markup("<tr>{}</tr>").format(Markup("").join(cells))

    top = Markup("<thead>{}</thead>\n").format(row(Markup('th scope="col"'), head)) if any(head) else ""
    body = Markup("\n").join(row(Markup("td"), texts) for texts in rows)
    return Markup('<div class="wide" tabindex="0"><table>\n{}<tbody>\n{}\n</tbody>\n</table></div>').format(
        top, body
    )


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|")
    if inner.endswith("|") and not inner.endswith(r"\|"):
        inner = inner[:-1]
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", inner)]
