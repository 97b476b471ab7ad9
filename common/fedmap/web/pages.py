"""Templates into pages. Every value is escaped by the template engine; no page needs JavaScript."""

from __future__ import annotations

import re
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

_FOLDER = Path(__file__).parent / "templates"


class Pages:
    """The templates of one application, all under the same heading."""

    def __init__(self, heading: str, folder: Path = _FOLDER) -> None:
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(folder),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters["marked"] = _marked
        self._heading = heading

    def page(self, template: str, **values: object) -> str:
        """The page; a value that the template asks for and does not get is a bug, and raises."""
        return self._templates.get_template(template).render(heading=self._heading, **values)


def _marked(text: str) -> Markup:
    """Words with `code` in them."""
    code = Markup("<code>{}</code>")
    parts = re.split(r"`([^`]+)`", text)
    return Markup("").join(code.format(part) if at % 2 else escape(part) for at, part in enumerate(parts))


def file_beside(name: str) -> bytes:
    """A file that the pages point at: the style sheet, the icon."""
    return (_FOLDER / name).read_bytes()
