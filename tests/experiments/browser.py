"""A headless Chromium for tests of the report, where there is one; otherwise the tests skip and say why."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def chromium_path() -> str | None:
    """A Chromium on this machine: $CHROMIUM, or the first of ``BROWSERS`` on the path; None where there is none."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser of playwright's; skips without playwright or Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = chromium_path()
    if path is None:
        pytest.skip(f"no Chromium on this machine (looked for {', '.join(BROWSERS)}, and $CHROMIUM)")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Any, address: str, *, own: str = "file:", expecting: str = "nothing") -> Iterator[Any]:
    """The page at ``address``; fails on any error in the console but an expected one, dialog, or request to elsewhere.

    ``own`` is how addresses of the page's own files begin.
    """
    trouble: list[str] = []
    place = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    tab = place.new_page()
    tab.on("console", lambda message: trouble.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: trouble.append(str(error)))
    tab.on("dialog", lambda dialog: (trouble.append(f"dialog {dialog.message}"), dialog.dismiss()))
    inside = (own, "data:", "blob:")
    tab.on("request", lambda sent: None if sent.url.startswith(inside) else trouble.append(sent.url))
    try:
        tab.goto(address)
        yield tab
        assert not [one for one in trouble if expecting not in one], trouble
    finally:
        place.close()
