"""Compaction: many files of an hour become one, and at no step does a row count twice or not."""

from __future__ import annotations

from pathlib import Path

import pytest
from lakes import (
    EVERYTHING,
    HOUR,
    events_of,
    lake_with_everything,
    plan,
    visible,
    write_events,
)

from tidegate.telemetry.compaction import run_round
from tidegate.telemetry.lake import Lake
from tidegate.telemetry.recorder import CompactionRound


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return lake_with_everything(tmp_path)


def test_the_files_of_a_past_hour_become_one(tmp_path: Path, lake: Lake) -> None:
    done = run_round(plan(tmp_path))

    assert (done.hours_compacted, done.files_replaced, done.files_deleted) == (1, 3, 0)
    # Who listed the old ones may still be reading them; they no longer count.
    assert len(visible(tmp_path)) == 4
    assert events_of(lake) == EVERYTHING

    done = run_round(plan(tmp_path))
    assert (done.hours_compacted, done.files_deleted) == (0, 3)
    [file] = lake.files("events")
    assert file.is_whole_hour
    assert len(lake.identity(file).replaces) == 3
    assert events_of(lake) == EVERYTHING

    assert run_round(plan(tmp_path)) == CompactionRound()


def test_replaced_files_stay_while_somebody_may_read_them(tmp_path: Path, lake: Lake) -> None:
    for _ in range(3):
        run_round(plan(tmp_path, linger_s=1e12))

    assert len(visible(tmp_path)) == 4
    assert events_of(lake) == EVERYTHING


def test_an_hour_that_may_still_get_files_is_left_alone(tmp_path: Path, lake: Lake) -> None:
    just_after = plan(tmp_path, now_s=(HOUR + 1) * 3600.0 + 599.0)

    assert run_round(just_after) == CompactionRound()
    assert len(visible(tmp_path)) == 3


def test_a_late_file_joins_the_others(tmp_path: Path, lake: Lake) -> None:
    for _ in range(2):
        run_round(plan(tmp_path))
    write_events(lake, ["late"])
    for _ in range(2):
        run_round(plan(tmp_path))

    assert len(visible(tmp_path)) == 1
    assert events_of(lake) == [*EVERYTHING, "late"]
    # It still stands for those that the first one stood for, should a copy of one turn up.
    assert len(lake.identity(lake.files("events")[0]).replaces) == 5


def test_files_of_others_are_left_to_them_until_they_are_surely_gone(
    tmp_path: Path, lake: Lake
) -> None:
    for name in ("x", "y"):
        write_events(lake, [name], writer="node-2")

    run_round(plan(tmp_path))
    assert sum(file.writer == "node-2" for file in lake.files("events")) == 2

    for _ in range(2):
        run_round(plan(tmp_path, orphaned_s=-1e12))
    assert [file.writer for file in lake.files("events")] == ["node-1", "node-2"]
    assert events_of(lake) == [*EVERYTHING, "x", "y"]


def test_two_who_compact_the_same_orphans_make_the_same_file(tmp_path: Path, lake: Lake) -> None:
    for writer in ("node-8", "node-9"):
        run_round(plan(tmp_path, writer=writer, orphaned_s=-1e12, linger_s=1e12))

    assert len(visible(tmp_path)) == 4
    assert events_of(lake) == EVERYTHING


def test_hours_beyond_the_retention_go(tmp_path: Path, lake: Lake) -> None:
    for hour in (HOUR + 3, HOUR + 4):
        write_events(lake, ["kept"], hour=hour)

    done = run_round(plan(tmp_path, retention_s=2 * 3600.0))

    assert done.hours_expired == 1
    assert events_of(lake) == ["kept", "kept"]


def test_a_clock_that_jumps_ahead_deletes_no_history(tmp_path: Path, lake: Lake) -> None:
    for hour in range(HOUR + 1, HOUR + 30):
        write_events(lake, ["history"], hour=hour)
    years_ahead = HOUR + 70 * 365 * 24
    retention_s = 30 * 86400.0
    for hour in range(years_ahead, years_ahead + 23):
        write_events(lake, ["ahead"], hour=hour)

        done = run_round(
            plan(tmp_path, retention_s=retention_s, now_s=hour * 3600.0 + 60, grace_s=1e12)
        )

        assert done.hours_expired == 0
    # A day was recorded by that time: it is the time.
    write_events(lake, ["ahead"], hour=years_ahead + 23)
    now_s = (years_ahead + 24) * 3600.0
    assert run_round(plan(tmp_path, retention_s=retention_s, now_s=now_s)).hours_expired == 30


def test_leftovers_of_an_earlier_life_go_and_those_of_others_stay(
    tmp_path: Path, lake: Lake
) -> None:
    folder = Path(lake.files("events")[0].path).parent
    ours, current, theirs = (
        folder / f"_{name}~{run}~1234.parquet"
        for name, run in [("node-1", "before"), ("node-1", "now"), ("node-2", "before")]
    )
    for path in (ours, current, theirs):
        path.write_bytes(b"PAR1 and no end")

    done = run_round(plan(tmp_path))

    assert done.leftovers_deleted == 1
    assert [path.exists() for path in (ours, current, theirs)] == [False, True, True]
    run_round(plan(tmp_path, orphaned_s=-1e12))
    assert not theirs.exists()


def test_a_broken_file_is_left_alone_and_holds_nobody_up(tmp_path: Path, lake: Lake) -> None:
    broken = Path(lake.files("events")[0].path).with_name("node-1~broken.parquet")
    broken.write_bytes(b"PAR1 and no end")

    for _ in range(2):
        done = run_round(plan(tmp_path))

    assert done.files_left_out == 1
    assert broken.exists()
    assert [file.name for file in lake.files("events") if file.is_whole_hour] == [
        file.name for file in lake.files("events") if file.name != broken.name
    ]
