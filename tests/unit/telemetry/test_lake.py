"""The lake: whole files in the folders of their hours, and what they say of themselves."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from lakes import AT_S, HOUR, event, events_of, visible, write_events

from tidegate.core.errors import InvalidValue
from tidegate.telemetry.lake import Lake, LakeFile
from tidegate.telemetry.recorder import table_of
from tidegate.telemetry.schemas import EVENTS


def test_a_file_lies_in_the_folder_of_its_hour_in_utc(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))

    path = write_events(lake, ["join"])

    assert Path(path).parent == tmp_path / "events/date=2026-09-21/hour=14"
    identity = lake.identity(lake.files("events")[0])
    assert (identity.kind, identity.version, identity.replaces) == ("events", 1, frozenset())
    assert identity.file_id in path


def test_files_are_found_by_the_time_they_may_hold(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    for hour in range(HOUR, HOUR + 4):
        write_events(lake, ["join"], hour=hour)

    def hours(**bounds: float) -> list[int]:
        return [file.hour - HOUR for file in lake.files("events", **bounds)]  # type: ignore[arg-type]

    assert hours() == [0, 1, 2, 3]
    assert hours(since_s=(HOUR + 1) * 3600, until_s=(HOUR + 3) * 3600) == [1, 2]
    assert hours(since_s=(HOUR + 1) * 3600 + 1, until_s=(HOUR + 3) * 3600 + 1) == [1, 2, 3]
    assert lake.kinds() == ["events"]
    assert lake.files("decisions") == []


def test_a_plain_path_and_an_address_are_the_same_lake(tmp_path: Path) -> None:
    write_events(Lake(str(tmp_path)), ["join"])

    assert events_of(Lake(tmp_path.as_uri())) == ["join"]


def test_an_address_of_no_known_kind_is_refused_in_a_sentence() -> None:
    with pytest.raises(InvalidValue, match="no lake that Arrow knows"):
        Lake("carrier-pigeon://roof/lake")


@pytest.mark.parametrize(
    "writer", ["a/../b", "x~all~y", "_hidden", ".hidden", "späße 1", "%7E", 255 * "é"]
)
def test_a_writer_may_be_called_anything(tmp_path: Path, writer: str) -> None:
    lake = Lake(str(tmp_path))

    write_events(lake, ["join"], writer=writer)

    [file] = lake.files("events")
    assert Path(file.path).is_relative_to(tmp_path / "events")
    assert not file.is_whole_hour
    assert events_of(lake) == ["join"]


def test_unfinished_lake_file_is_not_listed(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))

    def tables_that_end_in_the_middle() -> object:
        yield table_of(EVENTS.columns, [event()])
        [hidden] = lake.files("events", hidden=True)
        assert (hidden.writer, hidden.run) == ("node-1", "life")
        assert lake.files("events") == []
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        lake.write(EVENTS, HOUR, tables_that_end_in_the_middle(), writer="node-1", run="life")  # type: ignore[arg-type]

    assert list(tmp_path.rglob("*.parquet")) == []


def test_a_copy_of_a_file_counts_once(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    path = Path(write_events(lake, ["join"]))
    shutil.copy(path, path.with_name("copy.parquet"))

    assert len(visible(tmp_path)) == 2
    assert events_of(lake) == ["join"]


def test_a_cut_file_says_so(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    path = Path(write_events(lake, ["join"]))
    path.write_bytes(path.read_bytes()[:-20])

    with pytest.raises(InvalidValue, match="is not a file of a lake"):
        lake.identity(lake.files("events")[0])


def test_deleting_the_last_hour_of_a_day_deletes_the_day(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    for hour in (HOUR, HOUR + 1):
        write_events(lake, ["join"], hour=hour)

    lake.delete_hour("events", HOUR)
    assert (tmp_path / "events/date=2026-09-21").exists()
    lake.delete_hour("events", HOUR + 1)

    assert list((tmp_path / "events").iterdir()) == []
    lake.delete_hour("events", HOUR)  # gone already is as good
    lake.delete(LakeFile(str(tmp_path / "gone"), "events", HOUR, "gone", 0, AT_S))
