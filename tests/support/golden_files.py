"""Golden files: what users and other programs rely on, as text, and the comparison with it.

A golden says names, types, numbers and order. It says nothing of where code stands, what is private
or how a text is worded, so that code can be moved and texts can be rewritten under it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "unit" / "golden" / "files"
_DIFF_LINES_MAX = 200


class Golden:
    """Compares lines with a file, or writes the file when `--rewrite-golden` is given."""

    def __init__(self, rewrites: bool, folder: Path = FOLDER) -> None:
        self._rewrites = rewrites
        self._folder = folder

    def __call__(self, name: str, lines: Iterable[str]) -> None:
        """Fail with a unified diff when the lines are not those of the file."""
        found = list(lines)
        file = self._folder / name
        if self._rewrites:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(f"{line}\n" for line in found), encoding="utf-8")
            return
        if not file.is_file():
            pytest.fail(f"{file} is missing: write it with --rewrite-golden", pytrace=False)
        frozen = file.read_text(encoding="utf-8").splitlines()
        if found != frozen:
            diff = list(difflib.unified_diff(frozen, found, f"golden/{name}", "now", lineterm=""))
            left_out = len(diff) - _DIFF_LINES_MAX
            shown = diff[:_DIFF_LINES_MAX] + [f"… {left_out} more lines"] * (left_out > 0)
            pytest.fail("\n".join(shown), pytrace=False)
