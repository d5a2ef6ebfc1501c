"""Files and folders of the code that pages name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from places import DOCS, ROOT

BELOW = [ROOT, ROOT / "src", ROOT / "src" / "tidegate", ROOT / "src" / "tidegate_lab"]
PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|sql|toml))`")
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *(page for page in sorted(DOCS.rglob("*.md")) if page.parent.name != "decisions"),
]
# Names of files that a reader makes.
INVENTED = {"src/tidegate/laws/scaling/your_law.py"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_exist_that_a_page_names(page: Path) -> None:
    named = set(PATH.findall(page.read_text())) - INVENTED

    missing = {path for path in named if not any((root / path).exists() for root in BELOW)}

    assert missing == set()
