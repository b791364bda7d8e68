"""A headless Chromium for tests of the report, where there is one; otherwise the tests skip and say why."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
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
def opened(browser: Any, page: Path, *, fragment: str = "", **context: Any) -> Iterator[Any]:
    """The report at ``page``, from disk; fails on any console error, uncaught error, dialog or outside request."""
    trouble: list[str] = []
    place = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, "accept_downloads": True, **context})
    tab = place.new_page()
    tab.on("console", lambda message: trouble.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: trouble.append(str(error)))
    tab.on("dialog", lambda dialog: (trouble.append(f"dialog {dialog.message}"), dialog.dismiss()))
    tab.on(
        "request", lambda sent: None if sent.url.startswith(("file:", "data:", "blob:")) else trouble.append(sent.url)
    )
    try:
        tab.goto(page.as_uri() + fragment)
        yield tab
        assert not trouble, trouble
    finally:
        place.close()
