"""The recorder on a disk without room: its files stay whole."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from lakes import event, events_of

from tidegate.telemetry.lake import Lake
from tidegate.telemetry.recorder import Recorder, RecorderOptions

FLUSH_NEVER_S = 600.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few pages."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root may mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_leaves_no_broken_file_and_is_written_again_when_there_is_room(
    small_disk: Path,
) -> None:
    # Given a disk with hardly any room left
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(112 * 1024))
    options = RecorderOptions(lake=str(small_disk / "lake"), flush_s=FLUSH_NEVER_S, rows_max=1000)
    recorder = Recorder(options)
    recorder.start("node-1")

    # When more comes than fits
    written = 0
    while recorder.rows_dropped == 0:
        recorder.add("events", [event(name=f"number {written + n}") for n in range(100)])
        written += 100
        assert recorder.flush()
    assert recorder.rows_recorded < written

    # Then what is there is whole
    lake = Lake(recorder.lake)
    assert len(events_of(lake)) == recorder.rows_recorded
    # And nothing is held open for ever, however often it fails
    for _ in range(20):
        assert recorder.flush()
    opened = [str(p.readlink()) for p in Path("/proc/self/fd").iterdir() if p.is_symlink()]
    assert not any(str(small_disk) in path for path in opened)

    # And when there is room again, what waited is there too
    ballast.unlink()
    recorder.stop()
    assert recorder.rows_recorded + recorder.rows_dropped == written
    assert len(events_of(lake)) == recorder.rows_recorded == written - recorder.rows_dropped
    assert lake.files("events", hidden=True) == []
