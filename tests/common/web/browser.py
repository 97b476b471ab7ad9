"""A real Chromium without a screen, and what it cannot do without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")

needs_chromium = pytest.mark.skipif(
    not (CHROMIUM.exists() and DRIVER.exists()), reason="needs chromium and chromium-driver of Debian"
)


@contextmanager
def chromium(folder: Path) -> Iterator[Chrome]:
    """A browser with a profile of its own that keeps its downloads in folder/downloads."""
    options = ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--ignore-certificate-errors",
        f"--user-data-dir={folder / 'profile'}",
        "--window-size=1200,900",
    ):
        options.add_argument(argument)
    downloads = folder / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = Chrome(options=options, service=Service(str(DRIVER)))
    try:
        browser.set_page_load_timeout(30)
        yield browser
    finally:
        browser.quit()


def show(browser: Chrome, width: int, dark: bool = False) -> None:
    """The page at a width of so many CSS pixels, in the light or the dark scheme of the person's system."""
    screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": [scheme]})
