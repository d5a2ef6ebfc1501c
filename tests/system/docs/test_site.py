"""The documentation as a site: whole, without a dead link, and without anybody's server."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest
from places import ROOT
from reference import SCALING_TEXTS, SETTING_TEXTS, names

from tidegate.cli.settings import SECTIONS
from tidegate.core.topology import KEYS

# What a browser fetches by itself; a link that a reader may follow is another matter.
FETCHED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class Fetched(HTMLParser):
    """Addresses that a page has its browser fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get(FETCHED.get(tag, ""))
        if address is not None:
            self.addresses.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    # Not --quiet: what it hides, --strict does not count.
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_no_page_asks_anybody_elses_server_for_anything(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        fetched = Fetched()
        fetched.feed(page.read_text())
        assert fetched.addresses
        foreign = [one for one in fetched.addresses if re.match(r"(?:https?:)?//", one)]
        assert foreign == [], page.relative_to(site)


def test_diagrams_are_drawn_and_lists_are_lists(site: Path) -> None:
    architecture = (site / "architecture.html").read_text()
    assert 'aria-label="state diagram"' in architecture
    assert all(f">{state}</text>" in architecture for state in ("accepted", "leased", "done"))
    assert 'class="mermaid"' not in "".join(page.read_text() for page in site.rglob("*.html"))
    paragraphs = re.findall(r"<p>(.*?)</p>", (site / "gateway.html").read_text(), re.DOTALL)
    assert [one for one in paragraphs if re.search(r"^- ", one, re.MULTILINE)] == []


def test_a_list_below_a_paragraph_is_a_list_and_an_item_of_two_lines_stays_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hooks = _hooks(monkeypatch)
    assert hooks._with_lists("words:\n- one\n  more of it\n- two") == (
        "words:\n\n- one\n  more of it\n- two"
    )
    assert hooks._with_lists("1. one\n2. two\n\nwords\n3. three") == (
        "1. one\n2. two\n\nwords\n\n3. three"
    )


def test_links_that_leave_the_docs_lead_to_files_of_the_site(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hooks = _hooks(monkeypatch)
    text = "[a](../../CHANGELOG.md#x) [b](../scaling.md) [c](https://example.org/) [d](none.md)"
    assert hooks._relinked(text, "docs/how-to/upgrade.md") == (
        "[a](../CHANGELOG.md#x) [b](../scaling.md) [c](https://example.org/) [d](none.md)"
    )
    assert hooks._relinked("[a](docs/scaling.md)", "CHANGELOG.md") == "[a](scaling.md)"
    assert hooks._relinked("[a](../examples/README.md)", "docs/index.md") == (
        "[a](examples/examples.md)"
    )


def _hooks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "scripts" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    return hooks


def test_every_setting_is_explained_and_nothing_that_is_none() -> None:
    keys = {f"{section}.{key}" for section, fields in SECTIONS.items() for key in fields}
    assert set(SETTING_TEXTS) == keys
    assert set(SCALING_TEXTS) == {*KEYS, "prefetch"}


def test_every_command_stands_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    assert len(names()) > 40
    assert [name for name in names() if f"### tidegate {name}\n" not in page] == []
