"""report.html: one page that needs nothing else. Styles and pictures are inside, there is no script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jinja2

from fedmap_lab.report.facts.reading import Description
from fedmap_lab.report.figures.pictures import Shown
from fedmap_lab.report.page.tables import PageTable
from fedmap_lab.report.page.verdict import Verdict

_FOLDER = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class TierSection:
    tier: int
    sentence: str
    table: PageTable
    other: PageTable | None


@dataclass(frozen=True)
class Page:
    """What the template shows."""

    description: Description
    metric: str
    verdict: Verdict
    tiers: tuple[TierSection, ...]
    equity: tuple[PageTable, ...]
    hidden_equity: tuple[str, ...]
    figures: Mapping[str, Shown]
    prior_words: tuple[str, ...]
    site_words: tuple[str, ...]
    files: tuple[tuple[str, str], ...]


def render(page: Page) -> str:
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return templates.get_template("report.html").render(page=page, figures=page.figures)
