"""The model card as a page: the same words as in card.md, and no text can become a tag."""

from __future__ import annotations

from html.parser import HTMLParser
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from fedmap.bundles.card.blocks import Bullets, Card, Code, Paragraph, Picture, Section, Table, plain
from fedmap.web.pages import Pages

ALLOWED = {"h1", "h2", "p", "ul", "li", "code", "pre", "img"} | {
    "div",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
}
MARKS = st.text(alphabet="#*-|`\\![]()<>&\"' \n\tab1:", max_size=80)
PAGES = Pages("Models")


class Reader(HTMLParser):
    """Collects tags and text of the card, and demands that tags close in order."""

    def __init__(self, card: Card) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        manifest = SimpleNamespace(title="", file_name="x")
        bundle = SimpleNamespace(entry=SimpleNamespace(manifest=manifest, withdrawn=""), expired=False)
        page = PAGES.page("card.html", bundle=bundle, card=card, folder="/bundles/x", home="/")
        self.feed(page.partition('<article class="card">')[2].partition("</article>")[0])
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "img":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def card(*blocks: Paragraph | Bullets | Table | Code | Picture, title: str = "") -> Card:
    return Card(title, "", (Section("Data", blocks),))


@given(MARKS | st.text(max_size=80))
def test_whatever_the_text_only_known_tags_come_out(text: str) -> None:
    table, picture = Table.of(("A", "Rows"), [(text, "1")]), Picture("a.svg", text)
    whole = card(Paragraph(text), Bullets.of([text]), table, Code(text), picture, title=text)
    for tag, attributes in Reader(whole).tags:
        assert tag in ALLOWED
        assert set(attributes) <= {"class", "scope", "src", "alt", "tabindex"}
        assert attributes.get("src", "/bundles/x/a.svg") == "/bundles/x/a.svg"


@given(st.text(max_size=60))
def test_foreign_text_in_a_card_is_read_as_the_card_has_it(text: str) -> None:
    shown = Reader(card(Table.of(("A", "B"), [(text, "end")])))
    assert f"{plain(text)}end" in shown.text.split("\n")
    assert not {tag for tag, _ in shown.tags} & {"img", "code"}


def test_a_table_has_its_figures_to_the_right_and_a_head_where_it_has_words() -> None:
    tags = Reader(card(Table.of(("Model", "Value"), [("a", "0.812")]))).tags
    assert ("th", {"scope": "col", "class": "number"}) in tags
    assert [attributes for tag, attributes in tags if tag == "td"] == [{}, {"class": "number"}]
    assert "thead" not in dict(Reader(card(Table.of(("", ""), [("Study", "uci-heart")]))).tags)


def test_code_in_words_is_code() -> None:
    shown = Reader(card(Paragraph("second `code`"), Code("fedmap-site <FILE>")))
    assert [tag for tag, _ in shown.tags].count("code") == 2
    assert "fedmap-site <FILE>" in shown.text
