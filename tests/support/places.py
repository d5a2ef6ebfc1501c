"""Where the files are that tests read."""

from __future__ import annotations

from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
ROOT = SUPPORT.parents[1]
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples"
