"""Output of commands: rich tables for terminals, plain lines for pipes, JSON for programs.

A command passes columns and typed cells. On a terminal each column formats its own cells. In a pipe
a table is one line per row with cells separated by tabs, below a line of column names; numbers are
not formatted. JSON is made from the values and never from formatted text.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidegate.core.harmless import harmless

_CELL_PADDING = 2
Cell = str | int | float | bool | None
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True)
class Column:
    """A column of a table: its name, and how a terminal shows its cells."""

    name: str
    shown: Callable[[Any], str] = str
    right: bool = False
    style: str = ""
    # The column may be dropped if the terminal is too narrow.
    spare: bool = False

    def on_terminal(self, cell: Cell) -> Text:
        # Use Text instead of markup, because a queue may be called [red].
        return Text("–" if cell is None else harmless(self.shown(cell)), style=self.style)


class Output:
    """The output of one command."""

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self.console = Console()
        self.on_terminal = self.console.is_terminal and not as_json

    def json(self, value: Any, *, one_line: bool = False) -> None:
        """Print one JSON document."""
        encoded = msgspec.json.encode(value)
        self.line((encoded if one_line else msgspec.json.format(encoded, indent=2)).decode())

    def line(self, text: str, style: str = "", *, wrap: bool = False) -> None:
        """Print one line of text.

        Set `wrap` for text of our own, which may be wrapped between words on a terminal. Text from
        users is never wrapped.
        """
        if self.on_terminal:
            self.console.print(Text(text, style=style), soft_wrap=not wrap)
        else:
            print(text, flush=True)

    def report_console(self) -> Console:
        """Return a console for reports; outside a terminal it prints tables without boxes."""
        return self.console if self.on_terminal else _PlainConsole()

    def table(
        self, columns: Sequence[Column], rows: Iterable[Sequence[Cell]], title: str = ""
    ) -> None:
        """Print a table; outside a terminal as lines with tabs."""
        if self.on_terminal:
            self.console.print(terminal_table(columns, rows, title, width=self.console.width))
            return
        print("\t".join(column.name for column in columns))
        for row in rows:
            print("\t".join(_plain(cell) for cell in row))
        sys.stdout.flush()


class _PlainConsole(Console):
    """A console that prints rich tables as lines with tabs."""

    def __init__(self) -> None:
        super().__init__(no_color=True, highlight=False, width=10_000)

    def print(self, *objects: Any, **options: Any) -> None:
        for one in objects:
            if not isinstance(one, Table):
                super().print(one, **(options | {"soft_wrap": True}))
                continue
            if one.title:
                super().print(one.title, soft_wrap=True)
            columns = [list(column.cells) for column in one.columns]
            names = [column.header for column in one.columns]
            for row in [names, *zip(*columns, strict=True)]:
                cells = (self.render_str(c).plain if isinstance(c, str) else str(c) for c in row)
                # Rich consoles convert tabs to spaces, so print directly.
                print("\t".join(cells), file=self.file)


def terminal_table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[Cell]],
    title: str = "",
    *,
    width: int,
) -> Table:
    """Return a rich table, for callers that draw it themselves, such as a live view."""
    texts = [
        [column.on_terminal(cell) for column, cell in zip(columns, row, strict=True)]
        for row in rows
    ]
    chosen = _fitting(columns, texts, width)
    table = Table(
        title=title or None, title_justify="left", title_style="bold", header_style="dim", box=None
    )
    for index in chosen:
        column = columns[index]
        table.add_column(
            column.name, justify="right" if column.right else "left", no_wrap=True, min_width=3
        )
    for row in texts:
        table.add_row(*(row[index] for index in chosen))
    return table


def _fitting(columns: Sequence[Column], rows: Sequence[Sequence[Text]], width: int) -> list[int]:
    """Return the indices of the columns that fit; drop spare columns from the right."""
    widths = [
        max(len(column.name), 3, *(row[index].cell_len for row in rows)) + _CELL_PADDING
        for index, column in enumerate(columns)
    ]
    chosen = list(range(len(columns)))
    for index in reversed(range(len(columns))):
        if sum(widths[one] for one in chosen) <= width:
            break
        if columns[index].spare:
            chosen.remove(index)
    return chosen


def _plain(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:.3f}"
    # Escape tabs and newlines, so that a cell cannot break the table.
    return harmless(str(cell))
