"""What `tidegate watch` and `learn` refuse, they refuse at once: before Spark is started."""

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


def tidegate(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)],
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
    done = tidegate(tmp_path, "watch", "--lake", lake_of.folder, "--knowledge", place)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"{place}" in done.stderr
    assert "cannot be written: " in done.stderr


def test_a_second_watcher_is_refused_by_name(lake_of: LakeOf, tmp_path: Path) -> None:
    options = WatchOptions(str(lake_of.folder), tmp_path / "knowledge" / "watch", [])
    with held(options):
        done = tidegate(tmp_path, "watch", "--lake", lake_of.folder, "--knowledge", "knowledge")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "another tidegate watch" in done.stderr
    assert "end it first" in done.stderr


@pytest.mark.parametrize("command", ["learn", "watch"])
def test_the_lake_is_looked_for_in_the_data_folder_that_is_named(
    tmp_path: Path, command: str
) -> None:
    done = tidegate(tmp_path, command, "--data", "elsewhere")
    assert done.returncode == 1
    assert f"there is no lake at {tmp_path / 'elsewhere' / 'lake'}" in done.stderr


def test_a_lake_that_the_settings_name_stays_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "tidegate.toml").write_text("[telemetry]\nlake = 'mine'\n")
    done = tidegate(tmp_path, "learn", "--data", "elsewhere")
    assert f"there is no lake at {tmp_path / 'mine'}" in done.stderr
