"""The recorder: rows go in, whole files come out, whatever the disk does."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from lakes import AT_S, event, events_of

from tidegate.telemetry.lake import Lake
from tidegate.telemetry.recorder import Recorder, RecorderOptions

FLUSH_NEVER_S = 600.0


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    """One that writes when it is told to."""
    recorder = Recorder(RecorderOptions(lake=str(tmp_path / "lake"), flush_s=FLUSH_NEVER_S))
    recorder.start("node-1")
    yield recorder
    recorder.stop()


def test_rows_come_out_of_the_lake_as_they_went_in(tmp_path: Path, recorder: Recorder) -> None:
    recorder.event("join", "member 7", at_s=AT_S, value=2.5, detail={"address": "here"})
    recorder.event("leave", "member 7", at_s=AT_S + 1, duration_s=0.5)
    recorder.decision(
        "elasticity",
        "orders",
        "load",
        at_s=AT_S,
        inputs={"load": 210.0, "max_load": 200.0},
        outputs={"replicas": 2.0},
        action="add a replica",
        reason="210 wait per replica, and 200 are allowed",
    )
    assert recorder.flush()

    lake = Lake(recorder.lake)
    [file] = lake.files("events")
    join, leave = lake.read(file).to_pylist()
    assert (join["event"], join["subject"], join["node"]) == ("join", "member 7", "node-1")
    assert join["at"].timestamp() == AT_S
    assert (join["detail"], join["duration_s"], join["value"]) == ([("address", "here")], None, 2.5)
    assert (leave["detail"], leave["duration_s"], leave["value"]) == ([], 0.5, None)
    [decision] = lake.read(lake.files("decisions")[0]).to_pylist()
    assert dict(decision["inputs"]) == {"load": 210.0, "max_load": 200.0}
    assert (recorder.rows_recorded, recorder.rows_dropped) == (3, 0)


def test_rows_go_to_their_hours_whichever_way_the_clock_jumps(recorder: Recorder) -> None:
    for at_s in (AT_S, AT_S + 86_400, AT_S - 7200, AT_S + 1):
        recorder.add("events", [event(at_s, f"at {at_s - AT_S}")])
    recorder.flush()

    lake = Lake(recorder.lake)
    found = {file.hour: lake.read(file)["event"].to_pylist() for file in lake.files("events")}
    hour = AT_S // 3600
    assert found == {hour: ["at 0", "at 1"], hour + 24: ["at 86400"], hour - 2: ["at -7200"]}


def test_a_lake_that_fails_costs_rows_only_beyond_the_bound(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a lake where there is a file instead of a folder
    (tmp_path / "blocked").write_text("in the way")
    options = RecorderOptions(
        lake=str(tmp_path / "blocked" / "lake"), flush_s=FLUSH_NEVER_S, rows_max=3
    )
    recorder = Recorder(options)
    recorder.start("node-1")
    with caplog.at_level(logging.WARNING):
        # When rows come, and time after time cannot be written
        for name in "abcde":
            recorder.add("events", [event(name=name)])
            assert recorder.flush()
        # Then those beyond the bound are dropped and counted, and it was said once
        assert (recorder.rows_recorded, recorder.rows_dropped) == (0, 2)
        assert [r.message.startswith("cannot record to") for r in caplog.records] == [True]

        # When the way is free, then what was kept is there, and new rows are
        (tmp_path / "blocked").unlink()
        recorder.add("events", [event(name="one too many")])
        recorder.flush()
        recorder.add("events", [event(name="f")])
        recorder.stop()
    assert events_of(Lake(recorder.lake)) == ["a", "b", "c", "f"]
    assert (recorder.rows_recorded, recorder.rows_dropped) == (4, 3)
    assert "again; 3 rows were dropped" in caplog.records[-1].message


def test_rows_that_are_none_are_dropped_with_a_count_and_harm_no_others(
    recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    recorder.add("events", [(AT_S * 1_000_000, "a bug of ours")])
    recorder.add("decisions", [(AT_S * 1_000_000, *"too few")])
    assert recorder.flush()
    recorder.add("events", [event()])
    assert recorder.flush()

    assert (recorder.rows_recorded, recorder.rows_dropped) == (1, 2)
    assert events_of(Lake(recorder.lake)) == ["join"]


def test_a_lake_of_no_known_kind_drops_everything_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder = Recorder(RecorderOptions(lake="carrier-pigeon://roof/lake"))
    recorder.add("events", [event()])
    recorder.start("node-1")
    assert recorder.flush()
    recorder.add("events", [event()])
    recorder.stop()

    assert recorder.rows_dropped == 2
    assert "no lake that Arrow knows" in caplog.text
