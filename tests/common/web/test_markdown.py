"""Model cards as HTML: what our cards use is understood, and no text can become a tag."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from fedmap.bundles.card.figures import plain, table
from fedmap.web.markdown import to_html

ALLOWED = {"h1", "h2", "h3", "h4", "h5", "h6", "p", "ul", "li", "code", "pre", "img"} | {
    "div",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
}
MARKS = st.text(alphabet="#*-|`\\![]()<>&\"' \n\tab1:", max_size=80)


class Reader(HTMLParser):
    """Collects tags and text, and demands that tags close in order."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(str(page))  # a Markup would escape once more
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


@given(MARKS | st.text(max_size=80))
def test_whatever_the_text_only_known_tags_come_out(text: str) -> None:
    for tag, attributes in Reader(to_html(text, {"a": "/a.svg"})).tags:
        assert tag in ALLOWED
        assert set(attributes) <= {"class", "scope", "src", "alt", "tabindex"}
        assert attributes.get("src", "/a.svg") == "/a.svg"


@given(st.text(max_size=60).filter(lambda text: "`" not in text))
def test_foreign_text_in_a_card_is_read_as_the_card_has_it(text: str) -> None:
    shown = plain(text)
    line = list(table(("A", "B"), [(text, "end")]))[2]
    cells = Reader(to_html("\n".join(["| A | B |", "|---|---|", line])))
    assert [read for read in cells.text.split("\n") if read] == ["AB", f"{shown}end"]
    assert not {tag for tag, _ in cells.tags} & {"img", "code"}


def test_a_table_is_a_table_with_figures_to_the_right() -> None:
    rows = [
        "| Model | Value | 95 % interval |",
        "|---|---:|---:|",
        "| a | 0.812 | 0.764 to 0.853 |",
        "| b | – | none |",
    ]
    page = to_html("\n".join(rows))
    assert '<th scope="col">Model</th><th scope="col" class="number">Value</th>' in page
    assert '<td>a</td><td class="number">0.812</td><td class="number">0.764 to 0.853</td>' in page


def test_a_table_without_words_at_its_head_has_no_head() -> None:
    assert "<thead>" not in to_html("|  |  |\n|---|---|\n| Study | uci-heart |")


def test_paragraphs_bullets_and_code_are_kept_apart() -> None:
    page = to_html("One\nline.\n- first\n- second `code`\n```\nfedmap-site <FILE>\n```\nLast.")
    assert page == (
        "<p>One line.</p>\n<ul>\n<li>first</li>\n<li>second <code>code</code></li>\n</ul>\n"
        "<pre><code>fedmap-site &lt;FILE&gt;</code></pre>\n<p>Last.</p>"
    )


def test_only_the_bundles_own_picture_is_shown() -> None:
    text = "![Curve](calibration.svg) ![Other](https://example.org/x.png)"
    page = to_html(text, {"calibration.svg": "/bundles/x/calibration.svg"})
    assert [attributes["src"] for tag, attributes in Reader(page).tags if tag == "img"] == [
        "/bundles/x/calibration.svg"
    ]
    assert "![Other](https://example.org/x.png)" in Reader(page).text
