"""What `tidegate watch` and `learn` refuse, they refuse at once: before Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from lake_of import LakeOf
from refused_command import RefusedCommand

from tidegate.pipeline.watch import WatchOptions, lock_folder


@pytest.mark.parametrize("place", ["file", "file/knowledge", "knowledge"])
def test_a_folder_that_cannot_be_written_is_a_sentence(
    lake_of: LakeOf, tmp_path: Path, refused_command: RefusedCommand, place: str
) -> None:
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "knowledge").mkdir()
    (tmp_path / "knowledge" / "watch").write_text("not a folder")
    done = refused_command("watch", "--lake", lake_of.folder, "--knowledge", place)
    assert done.code == 1
    assert "Traceback" not in done.err
    assert f"{place}" in done.err
    assert "cannot be written: " in done.err


def test_a_second_watcher_is_refused_by_name(
    lake_of: LakeOf, tmp_path: Path, refused_command: RefusedCommand
) -> None:
    options = WatchOptions(str(lake_of.folder), tmp_path / "knowledge" / "watch", [])
    with lock_folder(options):
        done = refused_command("watch", "--lake", lake_of.folder, "--knowledge", "knowledge")
    assert done.code == 1
    assert "Traceback" not in done.err
    assert "another tidegate watch" in done.err
    assert "end it first" in done.err


@pytest.mark.parametrize("command", ["learn", "watch"])
def test_the_lake_is_looked_for_in_the_data_folder_that_is_named(
    tmp_path: Path, refused_command: RefusedCommand, command: str
) -> None:
    done = refused_command(command, "--data", "elsewhere")
    assert done.code == 1
    assert f"there is no lake at {tmp_path / 'elsewhere' / 'lake'}" in done.err


def test_a_lake_that_the_settings_name_stays_where_it_is(
    tmp_path: Path, refused_command: RefusedCommand
) -> None:
    (tmp_path / "tidegate.toml").write_text("[telemetry]\nlake = 'mine'\n")
    done = refused_command("learn", "--data", "elsewhere")
    assert f"there is no lake at {tmp_path / 'mine'}" in done.err
