"""Golden files can fail, and say what differs."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_files import Golden


def test_golden_fails_with_a_diff_when_lines_change(tmp_path: Path) -> None:
    Golden(rewrites=True, folder=tmp_path)("names.txt", ["one", "two"])

    Golden(rewrites=False, folder=tmp_path)("names.txt", ["one", "two"])
    with pytest.raises(pytest.fail.Exception) as failure:
        Golden(rewrites=False, folder=tmp_path)("names.txt", ["one", "three"])

    assert "-two\n+three" in str(failure.value)


def test_order_counts(tmp_path: Path) -> None:
    Golden(rewrites=True, folder=tmp_path)("names.txt", ["one", "two"])

    with pytest.raises(pytest.fail.Exception):
        Golden(rewrites=False, folder=tmp_path)("names.txt", ["two", "one"])


def test_a_file_that_is_missing_fails(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="--rewrite-golden"):
        Golden(rewrites=False, folder=tmp_path)("names.txt", ["one"])
