"""An experiment says that it cannot write its results before it measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate_lab.report import ExperimentFailed, make_folder


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ExperimentFailed, match=r"file/one: no results .* --results"):
        make_folder(tmp_path / "file" / "one")
