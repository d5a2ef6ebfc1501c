"""What README and tutorial tell their readers to do is done, in order, with real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from places import ROOT
from reader import SHOWN, Block, Reader, parts_of

README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"
HOW_TO = ROOT / "docs" / "how-to"
# Each with how many of its blocks nobody can run in a test.
PAGES = {
    README: 1,
    TUTORIAL: 1,
    HOW_TO / "alerts.md": 0,
    HOW_TO / "my-rabbitmq.md": 3,
    HOW_TO / "my-spark-cluster.md": 0,
    HOW_TO / "my-web-app.md": 1,
    HOW_TO / "three-machines.md": 1,
}
RUN_LANGUAGES = {"sh", "python", "toml"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_that_are_not_run_are_few_and_have_a_reason(page: Path) -> None:
    blocks = [part for part in parts_of(page) if isinstance(part, Block)]
    assert blocks
    assert {block.language for block in blocks} <= RUN_LANGUAGES | SHOWN
    not_run = [block for block in blocks if "not run" in block.words]
    assert len(not_run) <= PAGES[page]
    assert all(len(reason.split()) > 3 for block in not_run for reason in block.words["not run"])


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(README, id="README.md"),
        pytest.param(TUTORIAL, id="tutorial.md", marks=pytest.mark.only_with_all),
    ],
)
def test_a_reader_who_does_what_the_page_says_gets_to_its_end(page: Path, folder: Path) -> None:
    reader = Reader(folder)
    try:
        reader.read(page)
    finally:
        reader.end()
