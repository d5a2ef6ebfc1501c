"""Checks of what an experiment leaves behind: a whole page without links, and drawn figures."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from tidegate_lab.report import ExperimentSection


class _Tags(HTMLParser):
    """Every element that is opened is closed, in order."""

    VOID = frozenset({"meta", "img", "br", "link", "hr", "input", "col"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def assert_whole(page: str, images: int) -> None:
    tags = _Tags()
    tags.feed(page)
    assert not tags.open
    assert page.count("data:image/png;base64,") == images
    assert "http://" not in page
    assert "https://" not in page


def drawn(section: ExperimentSection, folder: Path) -> ExperimentSection:
    for drawing in section.drawings:
        assert (folder / drawing.file).stat().st_size > 1000, drawing.file
    assert section.as_json()["data"]
    return section
