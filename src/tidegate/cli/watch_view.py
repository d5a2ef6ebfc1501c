"""The view of `watch`: a light for each agreement, recent anomalies, and counts of rows read."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from tidegate.cli.learning import left_out
from tidegate.cli.output import Cell, Column, terminal_table

if TYPE_CHECKING:
    from tidegate.telemetry.knowledge import Reading

_ANOMALIES_SHOWN = 10
_COLOURS = {"met": "green", "warned": "yellow", "breached": "red", "no_data": "dim"}
_VERDICTS = {"no_data": "no data"}

Tables = list[tuple[str, list[Column], list[Sequence[Cell]]]]


def _clock(at: datetime) -> str:
    return f"{at:%H:%M:%S}"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


_AGREEMENTS = [
    Column("agreement", style="bold"),
    Column("verdict"),
    Column("at"),
    Column("met", right=True, style="green"),
    Column("warned", right=True, style="yellow"),
    Column("breached", right=True, style="red"),
    Column("no data", right=True, style="dim", spare=True),
    Column("burn", "{:.2f}".format, right=True),
    Column("alarm", style="bold red"),
    Column("budget left", _percent, right=True),
]
_ANOMALIES = [Column("seen"), Column("what")]
_READ = [
    Column("query"),
    Column("files", "{:,}".format, right=True),
    Column("rows", "{:,}".format, right=True),
    Column("left out", style="yellow"),
]


class Standing:
    """The last row of each agreement, and the most recent anomalies."""

    def __init__(self) -> None:
        self._agreements: dict[str, Mapping[str, Any]] = {}
        self._anomalies: deque[tuple[datetime, str]] = deque(maxlen=_ANOMALIES_SHOWN)

    @staticmethod
    def of(folder: Path) -> Standing:
        """Return the status that the last watch stored in the folder."""
        from tidegate.pipeline.watching.batches import read_table

        standing = Standing()
        for name in ("compliance", "anomalies"):
            table = read_table(folder, name)
            for row in [] if table is None else table.sort_by(_ORDER[name]).to_pylist():
                standing.take(name, row)
        return standing

    def take(self, table: str, row: Mapping[str, Any]) -> str | None:
        """Add a row; return a line about it if the verdict or alarm changed, or for an anomaly."""
        if table == "anomalies":
            from tidegate.pipeline.watching.anomalies import sentence

            said = sentence(dict(row))
            self._anomalies.append((row["at"], said))
            return f"{row['at']:%Y-%m-%dT%H:%M:%SZ} {said}"
        before = self._agreements.get(row["agreement"])
        self._agreements[row["agreement"]] = row
        changed = before is None or any(before[key] != row[key] for key in ("verdict", "alarm"))
        return _told(row) if changed else None

    def tables(self, readings: Mapping[str, Reading]) -> Tables:
        """Return title, columns and rows of each table."""
        agreements: list[Sequence[Cell]] = [
            _agreement_cells(row) for _, row in sorted(self._agreements.items())
        ]
        odd: list[Sequence[Cell]] = [(_clock(at), said) for at, said in self._anomalies]
        read: list[Sequence[Cell]] = [
            (query, reading.files, reading.rows, left_out(reading) or None)
            for query, reading in readings.items()
        ]
        found: Tables = [("Anomalies", _ANOMALIES, odd), ("Read", _READ, read)]
        if agreements:
            found.insert(0, ("Agreements, over the last hour", _AGREEMENTS, agreements))
        return found

    def screen(self, readings: Mapping[str, Reading], width: int) -> RenderableType:
        """Return the whole screen."""
        lights = Text("  ").join(
            Text.assemble(("● ", _COLOURS[row["verdict"]]), name)
            for name, row in sorted(self._agreements.items())
        )
        parts: list[RenderableType] = [
            Padding(
                lights if self._agreements else Text("waiting for the first window"), (0, 0, 1, 0)
            )
        ]
        for title, columns, rows in self.tables(readings):
            if rows:
                table = terminal_table(columns, rows, title, width=width - 4)
                parts.append(Padding(table, (0, 0, 1, 0)))
        return Padding(Group(*parts), (1, 2))


_ORDER = {
    "compliance": [("window", "ascending"), ("agreement", "ascending")],
    "anomalies": [("at", "ascending"), ("subject", "ascending")],
}


def _agreement_cells(row: Mapping[str, Any]) -> Sequence[Cell]:
    return (
        row["agreement"],
        _VERDICTS.get(row["verdict"], row["verdict"]),
        _clock(row["window"]),
        row["met"],
        row["warned"],
        row["breached"],
        row["no_data"],
        row["burn_hour"],
        row["alarm"],
        row["budget_left"],
    )


def _told(row: Mapping[str, Any]) -> str:
    verdict = _VERDICTS.get(row["verdict"], row["verdict"])
    alarm = f", burning {'fast' if row['alarm'] == 'fast' else 'slowly'}" if row["alarm"] else ""
    return (
        f"{row['window']:%Y-%m-%dT%H:%M:%SZ} {row['agreement']}: {verdict}{alarm} (last hour: "
        f"{row['met']} met, {row['warned']} warned, {row['breached']} breached; budget left "
        f"{_percent(row['budget_left'])})"
    )
