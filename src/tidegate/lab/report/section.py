"""The parts of a report: what one experiment asked, measured and drew."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tidegate.lab.bench.bars import Bar
from tidegate.report.chart import Table


class Drawing(msgspec.Struct, frozen=True):
    """A PNG file and its caption."""

    file: str
    caption: str


class Section(msgspec.Struct, frozen=True):
    """The results of one experiment."""

    name: str
    title: str
    # Where the paper shows the experiment, and what it reports.
    source: str
    paper: str
    ours: str
    # The heading of the paper's column, if it is not the system of the paper.
    theirs: str | None = None
    drawings: Sequence[Drawing] = ()
    tables: Sequence[Table] = ()
    bars: Sequence[Bar] = ()
    notes: Sequence[str] = ()
    # All measurements, as plain JSON values.
    data: dict[str, Any] = {}

    def as_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.to_builtins(self)
        for bar, struct in zip(plain["bars"], self.bars, strict=True):
            bar["met"] = struct.met
            bar["verdict"] = struct.verdict
        return plain


def write_json(value: object, file: Path) -> None:
    """Write a JSON file with indentation, so that people can read it."""
    file.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
