"""A Chromium without a window, and without what it does by itself."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator

from missing_peer import skip_or_fail
from playwright.sync_api import Browser, sync_playwright

_QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """While it is there, so is Playwright's event loop, and this thread can have no other."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        skip_or_fail("there is no Chromium on this machine: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(_QUIET))
        yield browser
        browser.close()
