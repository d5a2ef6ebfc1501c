"""The page in a real Chromium, from a file: it opens without a complaint, light and dark."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from chromium import chromium
from knowledge_of import KnowledgeOf
from matplotlib.image import imread
from missing_peer import skip_or_fail

from tidegate.report.page import document_of, write_report
from tidegate.telemetry.learned import LearnedModels

_QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--hide-scrollbars",
)


@pytest.fixture(scope="module")
def browser() -> str:
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        skip_or_fail("there is no Chromium on this machine: apt-get install chromium")
    return found


@pytest.fixture(scope="module")
def page(an_afternoon: KnowledgeOf, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "report.html"
    write_report(document_of(LearnedModels(an_afternoon.folder)), file)
    return file


def open_in(
    browser: str, page: Path, profile: Path, *options: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [browser, *_QUIET, f"--user-data-dir={profile}", *options, page.as_uri()],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )


def test_report_opens_from_a_file_without_browser_complaints(
    browser: str, page: Path, tmp_path: Path
) -> None:
    opened = open_in(browser, page, tmp_path, "--enable-logging=stderr", "--dump-dom")
    # Refused requests, scripts and styles are told on the console.
    assert "CONSOLE" not in opened.stderr
    assert opened.stdout.count("<figure") == page.read_text().count("<figure")
    assert "<script" not in opened.stdout


@pytest.mark.parametrize(
    ("scheme", "width", "is_light"), [("1", 1280, True), ("0", 1280, False), ("0", 390, False)]
)
def test_report_follows_light_and_dark(
    browser: str, page: Path, tmp_path: Path, scheme: str, width: int, is_light: bool
) -> None:
    picture = tmp_path / "picture.png"
    open_in(
        browser,
        page,
        tmp_path / "profile",
        f"--blink-settings=preferredColorScheme={scheme}",
        f"--window-size={width},1400",
        f"--screenshot={picture}",
    )
    shown = imread(picture)
    assert shown.shape[:2] == (1400, width)
    corner = shown[5, 5, :3]
    assert (corner > 0.9).all() if is_light else (corner < 0.2).all()
    # Something is drawn, in the other of the two.
    assert (shown[..., :3].mean(axis=2) < 0.3).any() if is_light else (shown[..., :3] > 0.8).any()


def test_paper_cuts_off_no_table_and_hides_what_a_reader_clicks(page: Path) -> None:
    with chromium() as browser:
        # A4 between the margins.
        tab = browser.new_page(viewport={"width": 688, "height": 1017})
        tab.emulate_media(media="print")
        tab.goto(page.as_uri())
        rights = tab.evaluate(
            "[...document.querySelectorAll('section > .scroll table')]"
            ".map(table => table.getBoundingClientRect().right)"
        )
        assert len(rights) >= 5
        assert max(rights) <= 688
        assert not tab.locator("nav, details").filter(visible=True).count()
