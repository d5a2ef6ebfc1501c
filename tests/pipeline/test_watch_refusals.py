"""What `tidegate watch` refuses, it refuses at once: before Spark is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from lake_of import LakeOf

from tidegate.pipeline.watching.watch import WatchOptions, held

# Whoever starts Spark here says so by a traceback.
PROGRAM = (
    "import tidegate.pipeline.session as session; session.spark_session = None; "
    "from tidegate.cli import main; main()"
)


def watch(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, "watch", *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("place", ["file", "file/knowledge", "knowledge"])
def test_a_folder_that_cannot_be_written_is_a_sentence(
    lake_of: LakeOf, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "knowledge").mkdir()
    (tmp_path / "knowledge" / "watch").write_text("not a folder")
    done = watch(tmp_path, "--lake", lake_of.folder, "--knowledge", place)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"{place}" in done.stderr
    assert "cannot be written: " in done.stderr


def test_a_second_watcher_is_refused_by_name(lake_of: LakeOf, tmp_path: Path) -> None:
    options = WatchOptions(str(lake_of.folder), tmp_path / "knowledge" / "watch", [])
    with held(options):
        done = watch(tmp_path, "--lake", lake_of.folder, "--knowledge", "knowledge")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "another tidegate watch" in done.stderr
    assert "end it first" in done.stderr
