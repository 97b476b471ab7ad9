"""The pages in a real browser: read, clicked, downloaded, narrow, dark, printed, and without a mouse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from fedmap.web.bundle_app import Entry, make_bundle_app
from tests.common.web.browser import chromium, needs_chromium, show
from tests.common.web.offered import FINGERPRINT, Shelf, manifest
from tests.common.web.serving import SECONDS, Federation, serving

pytestmark = needs_chromium

# For each text: its colour against the nearest painted ground, as WCAG counts contrast.
CONTRASTS = """
const parse = c => c.match(/[\\d.]+/g).map(Number);
const light = c => { const [r, g, b] = parse(c).map(v => v / 255).map(
  v => v <= 0.04045 ? v / 12.92 : Math.pow((v + 0.055) / 1.055, 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const ground = e => { for (let n = e; n; n = n.parentElement) {
  const c = getComputedStyle(n).backgroundColor, p = parse(c); if (p.length < 4 || p[3] > 0) return c; }
  return 'rgb(255, 255, 255)'; };
const found = {};
for (const e of document.querySelectorAll('body *')) {
  const text = [...e.childNodes].filter(n => n.nodeType === 3).map(n => n.data.trim()).join('');
  if (!text) continue;
  const [a, b] = [light(getComputedStyle(e).color), light(ground(e))];
  found[e.tagName + '.' + e.className] = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}
return JSON.stringify(found);
"""


@dataclass(frozen=True)
class Visit:
    """A person in front of the pages."""

    browser: Chrome
    shelf: Shelf
    address: str
    downloads: Path

    def go(self, path: str) -> str:
        show(self.browser, 1200)
        self.browser.get(self.address + path)
        return self.text()

    def text(self) -> str:
        return self.browser.find_element(By.TAG_NAME, "body").text

    def click(self, words: str) -> None:
        self.browser.find_element(By.PARTIAL_LINK_TEXT, words).click()

    def downloaded(self, entry: Entry) -> bytes:
        """The file, once the browser has all of it under its name."""
        path = self.downloads / entry.manifest.file_name
        WebDriverWait(self.browser, SECONDS, 0.05).until(
            lambda _: path.exists() and path.stat().st_size == entry.size
        )
        return path.read_bytes()


@pytest.fixture(scope="module")
def visit(federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    folder = tmp_path_factory.mktemp("visit")
    shelf = Shelf(folder)
    with (
        serving(make_bundle_app(shelf, "Heart federation"), federation) as server,
        chromium(folder / "browser") as browser,
    ):
        yield Visit(browser, shelf, f"https://127.0.0.1:{server.port}", folder / "browser" / "downloads")


@pytest.fixture(autouse=True)
def offered(visit: Visit) -> Entry:
    """One bundle to have, one to fine-tune, one withdrawn."""
    visit.shelf.entries_offered.clear()
    entry = visit.shelf.put(manifest())
    visit.shelf.put(manifest(tier=2, version=3))
    visit.shelf.put(manifest(tier=2, version=2), withdrawn="Cholesterol was given in mixed units.")
    visit.shelf.linked, visit.shelf.spent = entry.manifest.file_name, False
    for old in visit.downloads.iterdir():
        old.unlink()
    visit.browser.get_log("browser")  # type: ignore[no-untyped-call]
    return entry


def test_a_person_reads_the_page_clicks_and_has_the_file(visit: Visit, offered: Entry) -> None:
    page = visit.go("/")
    for said in (
        "Models for your clinic",
        "Heart disease at four hospitals",
        "0.760 to 0.830",
        "30 December 2035",
        f'fedmap-site bundle verify uci-heart-t3-1.fedmap --fingerprint "{FINGERPRINT}"',
        "Withdrawn. Do not use this model. Cholesterol was given in mixed units.",
    ):
        assert said in page
    assert len(visit.browser.find_elements(By.CSS_SELECTOR, "a.button")) == 2
    visit.click("Download")
    assert visit.downloaded(offered) == visit.shelf.bytes_of(offered)
    assert visit.shelf.fetched.acquire(timeout=SECONDS)


def test_a_link_gives_the_file_once(visit: Visit, offered: Entry) -> None:
    assert "Your download link" in visit.go("/d/open-sesame")
    visit.click("Read the model card")
    assert "Versions and lineage" in visit.text()
    visit.click("Back to the download")
    visit.click("Download")
    assert visit.downloaded(offered) == visit.shelf.bytes_of(offered)
    assert visit.shelf.arrived.acquire(timeout=SECONDS)
    assert "This download link has been used." in visit.go("/d/open-sesame")


def test_the_card_shows_its_picture(visit: Visit) -> None:
    visit.go("/")
    visit.click("Read the model card")
    picture = visit.browser.find_element(By.CSS_SELECTOR, ".card img")
    size = visit.browser.execute_script("return [arguments[0].complete, arguments[0].naturalWidth]", picture)
    assert size[0]
    assert size[1] > 100


@pytest.mark.parametrize("path", ["/", "/d/open-sesame", "/bundles/uci-heart-t3-1.fedmap/card", "/nowhere"])
def test_every_page_fits_a_small_telephone_and_can_be_read_by_day_and_night(visit: Visit, path: str) -> None:
    visit.go(path)
    for width, dark in ((360, False), (1200, False), (1200, True)):
        show(visit.browser, width, dark)
        wide = visit.browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width
        contrasts = json.loads(visit.browser.execute_script(CONTRASTS))
        assert len(contrasts) > 3
        assert {where: ratio for where, ratio in contrasts.items() if ratio < 4.5} == {}


def test_the_browser_finds_nothing_to_complain_about(visit: Visit) -> None:
    for path in ("/", "/d/open-sesame", "/bundles/uci-heart-t3-1.fedmap/card"):
        visit.go(path)
    assert visit.browser.get_log("browser") == []  # type: ignore[no-untyped-call]


def test_on_paper_there_is_the_text_and_no_button(visit: Visit) -> None:
    visit.go("/")
    visit.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert not visit.browser.find_element(By.CSS_SELECTOR, "a.button").is_displayed()
    assert FINGERPRINT in visit.text()


def test_the_page_can_be_used_with_the_keyboard(visit: Visit, offered: Entry) -> None:
    visit.go("/")
    body = visit.browser.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB)
    assert visit.browser.switch_to.active_element.text == "Skip to the content"
    visit.browser.switch_to.active_element.send_keys(Keys.TAB)
    button = visit.browser.switch_to.active_element
    assert button.accessible_name == "Download 3 MB of uci-heart-t3-1.fedmap"
    button.send_keys(Keys.ENTER)
    assert visit.downloaded(offered) == visit.shelf.bytes_of(offered)
    assert visit.shelf.fetched.acquire(timeout=SECONDS)
