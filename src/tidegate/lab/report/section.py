"""The parts of a report: what one experiment asked, found, and drew."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tidegate.lab.bench.bars import Bar
from tidegate.report.chart import Table


class Drawing(msgspec.Struct, frozen=True):
    """A PNG that has been written, and the sentence below it."""

    file: str
    caption: str


class Section(msgspec.Struct, frozen=True):
    """One experiment."""

    name: str
    title: str
    # Where the paper shows it, and what it says there.
    source: str
    paper: str
    ours: str
    # What the first of the two is called where it is not what the paper found.
    theirs: str | None = None
    drawings: Sequence[Drawing] = ()
    tables: Sequence[Table] = ()
    bars: Sequence[Bar] = ()
    notes: Sequence[str] = ()
    # Everything measured, as plain JSON values.
    data: dict[str, Any] = {}

    def as_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.to_builtins(self)
        for bar, struct in zip(plain["bars"], self.bars, strict=True):
            bar["met"] = struct.met
            bar["verdict"] = struct.verdict
        return plain


def write_json(value: object, file: Path) -> None:
    """A JSON file that people can read, too."""
    file.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
