"""A report as PDF: the same charts on landscape pages, drawn by matplotlib only.

A page holds four charts with their titles and sentences. Text is wrapped by counting letters, which
is possible because the font always is the one shipped with matplotlib.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_pdf import FigureCanvasPdf, PdfPages
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle

from tidegate.core.text import escape_control_characters
from tidegate.report.charts import (
    AXIS,
    GRID,
    INK,
    PALE,
    SOFT,
    STYLE,
    VERDICTS,
    WIDTH_IN,
    Card,
    Chart,
    Colour,
    Document,
    ReportSection,
    ReportTable,
    StatusLight,
    draw_into,
)
from tidegate.report.page import RIBBON_HEIGHTS, STATUS_WORDS

# A4, landscape.
PAGE_IN = (11.69, 8.27)
_MARGIN_IN = 0.48
_GAP_IN = PAGE_IN[0] - 2 * _MARGIN_IN - 2 * WIDTH_IN
_POINT_IN = 1.0 / 72.0
# The mean width of a letter, as a fraction of the font size.
_LETTER = 0.56
_CARD_HEIGHT_IN = 2.45
_CELL_LINES_MAX = 6
# Low enough that two rows of charts with their sentences fill a page.
_CHART_HEIGHT_IN_MAX = 2.42


def write_pdf(document: Document, file: Path) -> None:
    """Write the whole document to a file."""
    nothing = dict.fromkeys(("CreationDate", "ModDate", "Creator", "Producer"))
    with (
        mpl.rc_context(STYLE),
        warnings.catch_warnings(),
        PdfPages(file, metadata=nothing | {"Title": document.title}) as pages,
    ):
        # Names may use a script that the font lacks. They appear as boxes, and need no warning.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        writer = _Writer(pages)
        _write_head(writer, document)
        for section in document.sections:
            _write_section(writer, section)
        _write_notes(writer, document.notes)
        writer.finish()


class _Writer:
    """The position on the current page; heights count from the top, in inches."""

    def __init__(self, pages: PdfPages) -> None:
        # matplotlib's type annotations lack saving a figure to `PdfPages`.
        self._pages: Any = pages
        self.number = 0
        self._begin_page()

    def _begin_page(self) -> None:
        self.figure = Figure(figsize=PAGE_IN)
        FigureCanvasPdf(self.figure)
        self.number += 1
        self.top_in = _MARGIN_IN

    def finish(self) -> None:
        self.text(str(self.number), PAGE_IN[0] - _MARGIN_IN, PAGE_IN[1] - 0.3, 8.0, SOFT, "right")
        self.figure.savefig(self._pages, format="pdf")

    def new_page(self) -> None:
        if self.top_in > _MARGIN_IN:
            self.finish()
            self._begin_page()

    def need(self, height_in: float) -> None:
        """Begin a new page unless this height is left on the current one."""
        if self.top_in + height_in > PAGE_IN[1] - _MARGIN_IN:
            self.new_page()

    def text(
        self,
        words: str,
        left_in: float,
        top_in: float,
        size: float,
        colour: Colour = INK,
        align: str = "left",
        bold: bool = False,
    ) -> None:
        self.figure.text(
            left_in / PAGE_IN[0],
            1.0 - top_in / PAGE_IN[1],
            _lines_harmless(words),
            fontsize=size,
            color=colour.light,
            ha=align,
            va="top",
            linespacing=1.35,
            fontweight="bold" if bold else "normal",
        )

    def paragraph(
        self, words: str, size: float, colour: Colour = INK, *, bold: bool = False
    ) -> None:
        """Write wrapped text over the whole width, below the current position."""
        for line in _broken(words, PAGE_IN[0] - 2 * _MARGIN_IN, size, bold=bold):
            self.need(size * 1.5 * _POINT_IN)
            self.text(line, _MARGIN_IN, self.top_in, size, colour, bold=bold)
            self.top_in += size * 1.5 * _POINT_IN

    def box(
        self, left_in: float, top_in: float, width_in: float, height_in: float, colour: Colour
    ) -> None:
        self.figure.add_artist(
            Rectangle(
                (left_in / PAGE_IN[0], 1.0 - (top_in + height_in) / PAGE_IN[1]),
                width_in / PAGE_IN[0],
                height_in / PAGE_IN[1],
                color=colour.light,
                linewidth=0,
                transform=self.figure.transFigure,
            )
        )

    def triangle(self, left_in: float, top_in: float, size_in: float, colour: Colour) -> None:
        corners = ((0.5, 0.0), (1.0, 1.0), (0.0, 1.0))
        self.figure.add_artist(
            Polygon(
                [
                    (
                        (left_in + x * size_in) / PAGE_IN[0],
                        1.0 - (top_in + y * size_in) / PAGE_IN[1],
                    )
                    for x, y in corners
                ],
                color=colour.light,
                linewidth=0,
                transform=self.figure.transFigure,
            )
        )


def _lines_harmless(words: str) -> str:
    return "\n".join(escape_control_characters(line) for line in words.split("\n"))


def _broken(words: str, width_in: float, size: float, *, bold: bool = False) -> list[str]:
    letter_in = size * (_LETTER + (0.07 if bold else 0.0)) * _POINT_IN
    return textwrap.wrap(escape_control_characters(words), max(int(width_in / letter_in), 8))


def _write_head(writer: _Writer, document: Document) -> None:
    writer.top_in = 0.7
    writer.paragraph("TIDEGATE", 9.0, SOFT)
    writer.paragraph(document.title, 26.0, bold=True)
    writer.paragraph(document.subtitle, 13.0, SOFT)
    writer.top_in += 0.2
    for name, fact in document.facts:
        writer.need(0.24)
        writer.text(name, _MARGIN_IN, writer.top_in, 9.5, SOFT)
        for line in _broken(fact, PAGE_IN[0] - 2 * _MARGIN_IN - 1.7, 9.5):
            writer.need(0.24)
            writer.text(line, _MARGIN_IN + 1.7, writer.top_in, 9.5)
            writer.top_in += 0.22
    writer.top_in += 0.25


def _write_section(writer: _Writer, section: ReportSection) -> None:
    # A section with more than two charts begins on a new page; smaller ones share pages.
    if len(section.charts) > 2:
        writer.new_page()
    # Keep the heading on the page of its content.
    writer.need(4.0 if section.charts else 3.0 if section.cards else 1.2)
    writer.paragraph(section.title, 15.0, bold=True)
    if section.sentence:
        writer.paragraph(section.sentence, 10.0)
    writer.top_in += 0.12
    _write_cards(writer, section.cards)
    _write_charts(writer, section.charts)
    for table in section.tables:
        _write_table(writer, table)
    if section.missing:
        writer.paragraph(section.missing.replace("`", ""), 10.0, SOFT)
    _write_notes(writer, section.notes)
    writer.top_in += 0.2


def _write_notes(writer: _Writer, notes: Sequence[str]) -> None:
    for note in notes:
        writer.paragraph("·  " + note.replace("`", ""), 8.5, SOFT)


def _write_charts(writer: _Writer, charts: Sequence[Chart]) -> None:
    for first in range(0, len(charts), 2):
        row = charts[first : first + 2]
        broken = [
            (
                _broken(chart.title, WIDTH_IN, 10.5, bold=True),
                _broken(chart.sentence, WIDTH_IN, 8.5),
            )
            for chart in row
        ]
        words_in = max(0.2 * len(title) + 0.16 * len(lines) for title, lines in broken) + 0.05
        height_in = max(_height_in(chart) for chart in row)
        writer.need(words_in + height_in)
        for column, (chart, (title, lines)) in enumerate(zip(row, broken, strict=True)):
            left_in = _MARGIN_IN + column * (WIDTH_IN + _GAP_IN)
            writer.text("\n".join(title), left_in, writer.top_in, 10.5, bold=True)
            writer.text("\n".join(lines), left_in, writer.top_in + 0.2 * len(title), 8.5, SOFT)
            bottom_in = PAGE_IN[1] - writer.top_in - words_in - _height_in(chart)
            draw_into(writer.figure, chart, (left_in, bottom_in, WIDTH_IN, _height_in(chart)))
        writer.top_in += words_in + height_in + 0.1


def _height_in(chart: Chart) -> float:
    return min(chart.height_in, _CHART_HEIGHT_IN_MAX)


def _write_cards(writer: _Writer, cards: Sequence[Card]) -> None:
    width_in = (PAGE_IN[0] - 2 * _MARGIN_IN - 2 * 0.3) / 3
    for first in range(0, len(cards), 3):
        writer.need(_CARD_HEIGHT_IN)
        for column, card in enumerate(cards[first : first + 3]):
            _write_card(writer, card, _MARGIN_IN + column * (width_in + 0.3), width_in)
        writer.top_in += _CARD_HEIGHT_IN + 0.15


def _write_card(writer: _Writer, card: Card, left_in: float, width_in: float) -> None:
    colour = VERDICTS[card.standing]
    top_in = writer.top_in
    writer.box(left_in, top_in, width_in, 0.025, colour)
    name = _broken(card.name, width_in - 1.1, 11.0, bold=True)[:1] or [""]
    writer.text(name[0], left_in, top_in + 0.1, 11.0, bold=True)
    word = STATUS_WORDS[card.standing]
    writer.text(word, left_in + width_in, top_in + 0.1, 11.0, colour, "right", bold=True)
    mark_in = left_in + width_in - len(word) * 0.105 - 0.2
    if card.standing is StatusLight.WARNED:
        writer.triangle(mark_in, top_in + 0.13, 0.12, colour)
    elif card.standing is StatusLight.BREACHED:
        writer.box(mark_in, top_in + 0.13, 0.11, 0.11, colour)
    else:
        writer.text(
            "●" if card.standing is StatusLight.MET else "○", mark_in, top_in + 0.1, 10.0, colour
        )
    says = _broken(card.says, width_in, 8.0)[:2]
    writer.text("\n".join(says), left_in, top_in + 0.34, 8.0, SOFT)
    top_in += 0.38 + 0.15 * len(says)
    if card.ribbon:
        slice_in = width_in / len(card.ribbon)
        for position, standing in enumerate(card.ribbon):
            height_in = 0.2 * RIBBON_HEIGHTS[standing]
            writer.box(
                left_in + position * slice_in,
                top_in + 0.2 - height_in,
                slice_in,
                height_in,
                VERDICTS[standing],
            )
        top_in += 0.28
    if card.budget_left is not None:
        left = min(max(card.budget_left, 0.0), 1.0)
        writer.box(left_in, top_in, width_in, 0.05, PALE)
        writer.box(left_in, top_in, width_in * left, 0.05, colour)
        top_in += 0.13
    for fact, figure in card.facts:
        writer.text(fact, left_in, top_in, 8.5, SOFT)
        writer.text(figure, left_in + width_in, top_in, 8.5, INK, "right")
        top_in += 0.185


def _write_table(writer: _Writer, table: ReportTable) -> None:
    """Write a table with columns as wide as their content; wrap cells that are too long."""
    size = 8.0
    letter_in = size * _LETTER * _POINT_IN
    longest = [
        max(len(column), *(len(row[index]) for row in table.rows), 0)
        for index, column in enumerate(table.columns)
    ]
    room = (PAGE_IN[0] - 2 * _MARGIN_IN) / letter_in - 2 * len(longest)
    # Narrow the widest columns first.
    while sum(longest) > room and max(longest) > 8:
        longest[longest.index(max(longest))] -= 1
    caption = table.caption
    if table.rows_in_all is not None and table.rows_in_all > len(table.rows):
        caption += f" Shown are {len(table.rows)} of {table.rows_in_all} rows."
    writer.need(0.8)
    writer.paragraph(caption, 8.5, SOFT)
    _write_row(writer, table.columns, longest, letter_in, size, SOFT)
    writer.box(_MARGIN_IN, writer.top_in - 0.02, PAGE_IN[0] - 2 * _MARGIN_IN, 0.008, AXIS)
    for row in table.rows:
        _write_row(writer, row, longest, letter_in, size, INK)
        writer.box(_MARGIN_IN, writer.top_in - 0.02, PAGE_IN[0] - 2 * _MARGIN_IN, 0.004, GRID)
    writer.top_in += 0.15


def _write_row(
    writer: _Writer,
    cells: Sequence[str],
    widths: Sequence[int],
    letter_in: float,
    size: float,
    colour: Colour,
) -> None:
    broken = [
        textwrap.wrap(cell, max(width, 4))[:_CELL_LINES_MAX]
        for cell, width in zip(cells, widths, strict=True)
    ]
    height_in = 0.06 + 0.15 * max(len(lines) for lines in broken)
    writer.need(height_in)
    left_in = _MARGIN_IN
    for lines, width in zip(broken, widths, strict=True):
        writer.text("\n".join(lines), left_in, writer.top_in, size, colour)
        left_in += (width + 2) * letter_in
    writer.top_in += height_in
