"""What a page is made of: sections with charts, tables, and sentences that say what they show.

A chart is a function that draws into axes, so that the same one becomes SVG in a page and a picture
in a PDF. Nobody needs to see it: its sentence says the finding, its table the numbers.
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
    """A table of text; numbers are formatted by whoever knows them."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    # How many rows there were, when not all are shown.
    rows_in_all: int | None = None


@dataclass(frozen=True)
class Chart:
    """A picture, the sentence that says what it shows, and the numbers behind it."""

    title: str
    sentence: str
    # What is measured upwards, with its unit; stands at the top of the axis.
    measures: str
    draw: Callable[[Axes], None]
    table: Table
    # Room to the right of the axes for labels at the lines' ends.
    label_in: float = 0.2
    # Room to the left of the axes, for the words at its ticks.
    ticks_in: float = 0.66
    # Room below the axes' own ticks, for a key.
    foot_in: float = 0.0
    height_in: float = 2.75


class Standing(StrEnum):
    """How an agreement stands."""

    MET = "met"
    WARNED = "warned"
    BREACHED = "breached"
    NO_DATA = "no_data"


@dataclass(frozen=True)
class Card:
    """One agreement at a glance."""

    name: str
    says: str
    standing: Standing
    # Name and figure, the most important first.
    facts: Sequence[tuple[str, str]]
    # Of the error budget, what is left: 1 untouched, 0 used up, below it overdrawn.
    budget_left: float | None
    # The worst verdict of each slice of time, oldest first.
    ribbon: Sequence[Standing] = ()
    ribbon_says: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page with its own heading."""

    anchor: str
    title: str
    sentence: str = ""
    cards: Sequence[Card] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    # What is missing, and how to get it.
    missing: str = ""
    notes: Sequence[str] = ()
    # Whether it belongs to a queue: shown one level below.
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
