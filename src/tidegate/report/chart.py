"""The parts of a report: documents, sections, cards, charts and tables.

A chart is a function that draws into matplotlib axes, so that the same chart serves HTML and PDF.
Each chart has a sentence with its finding and a table of its numbers, for readers who cannot see
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Table:
    """A table of text; the code that builds it has formatted the numbers."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    # The number of rows before some were left out; `None` if all are shown.
    rows_in_all: int | None = None


@dataclass(frozen=True)
class Chart:
    """A picture, a sentence with its finding, and the numbers behind it."""

    title: str
    sentence: str
    # The quantity and unit of the vertical axis; shown above the axis.
    measures: str
    draw: Callable[[Axes], None]
    table: Table
    # Space in inches to the right of the axes, for the labels of lines.
    label_in: float = 0.2
    # Space in inches to the left of the axes, for the tick labels.
    ticks_in: float = 0.66
    # Space in inches below the tick labels, for a key.
    foot_in: float = 0.0
    height_in: float = 2.75


class Standing(StrEnum):
    """The status of an agreement."""

    MET = "met"
    WARNED = "warned"
    BREACHED = "breached"
    NO_DATA = "no_data"


@dataclass(frozen=True)
class Card:
    """The summary of one agreement."""

    name: str
    says: str
    standing: Standing
    # Name and value, the most important first.
    facts: Sequence[tuple[str, str]]
    # The fraction of the error budget that is left; below 0 it is overdrawn. `None` means unknown.
    budget_left: float | None
    # The worst verdict of each slice of time, oldest first.
    ribbon: Sequence[Standing] = ()
    ribbon_says: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the report with a heading of its own."""

    anchor: str
    title: str
    sentence: str = ""
    cards: Sequence[Card] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    # What data are missing, and how to obtain them.
    missing: str = ""
    notes: Sequence[str] = ()
    # True if the section belongs to a queue and is shown one level below it.
    of_queue: bool = False


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    subtitle: str
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    notes: Sequence[str] = ()
    tables: Sequence[Table] = field(default_factory=tuple)
