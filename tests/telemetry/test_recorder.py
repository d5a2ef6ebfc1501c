"""The recorder and its lake: rows go in, whole files come out, whatever the disk does."""

from __future__ import annotations

from pathlib import Path

from tidegate.telemetry.lake import Lake
from tidegate.telemetry.recorder import Recorder, RecorderOptions

AT_US = 1_790_000_000_000_000


def event(at_us: int = AT_US, name: str = "join") -> tuple[object, ...]:
    return (at_us, "node-1", name, "member 1", None, 2.5, [("address", "here")])


def test_rows_come_out_of_the_lake_as_they_went_in(tmp_path: Path) -> None:
    recorder = Recorder(RecorderOptions(lake=str(tmp_path / "lake")))
    recorder.start("node-1")
    recorder.add("events", [event(), event(name="leave")])
    recorder.stop()
    lake = Lake(str(tmp_path / "lake"))
    [file] = lake.files("events")
    rows = lake.read(file).to_pylist()
    assert [row["event"] for row in rows] == ["join", "leave"]
    assert rows[0]["detail"] == [("address", "here")]
    assert rows[0]["duration_s"] is None
    assert "/events/date=2026-09-21/hour=14/node-1~" in file.path
    identity = lake.identity(file)
    assert (identity.kind, identity.version) == ("events", 1)
    assert identity.file_id in file.name
    assert recorder.rows_recorded == 2
