"""Lakes for tests: rows of events, written by whom and when the test says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tidegate.telemetry.lake import Lake
from tidegate.telemetry.recorder import CompactionPlan, table_of
from tidegate.telemetry.schemas import EVENTS

# 2026-09-21 14:13:20 UTC
AT_S = 1_790_000_000
HOUR = AT_S // 3600
LONG_AFTER_S = (HOUR + 5) * 3600.0
EVERYTHING = ["a", "a", "b", "b", "c", "c"]


def event(at_s: float = AT_S, name: str = "join", node: str = "node-1") -> tuple[Any, ...]:
    return (int(at_s * 1e6), node, name, "member 1", None, 2.5, [("address", "here")])


def write_events(lake: Lake, names: list[str], *, writer: str = "node-1", hour: int = HOUR) -> str:
    """A file with an event of each name."""
    rows = [event(hour * 3600 + 1, name, writer) for name in names]
    return lake.write(EVENTS, hour, [table_of(EVENTS.columns, rows)], writer=writer, run="life")


def events_of(lake: Lake) -> list[str]:
    """What a reader sees who honours what stands for what."""
    return sorted(
        name
        for file in lake.current(lake.files("events"))
        for name in lake.read(file, ["event"])["event"].to_pylist()
    )


def visible(folder: Path) -> list[str]:
    """The files that are there for readers, by their names."""
    return sorted(path.name for path in folder.rglob("*.parquet") if path.name[0] not in "_.")


def lake_with_everything(folder: Path) -> Lake:
    """Three files of one hour."""
    lake = Lake(str(folder))
    for name in ("a", "b", "c"):
        write_events(lake, [name, name])
    return lake


def plan(folder: Path, **changes: object) -> CompactionPlan:
    """A round for node-1 long after the hour, to which replaced files are old enough to go."""
    values: dict[str, object] = {
        "lake": str(folder),
        "writer": "node-1",
        "run": "now",
        "now_s": LONG_AFTER_S,
        "orphaned_s": 1e12,
        "linger_s": -1e12,
    }
    return msgspec.convert(values | changes, CompactionPlan)
