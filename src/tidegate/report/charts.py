"""The parts of a report: documents, sections, cards, charts and tables.

A chart is a function that draws into matplotlib axes. Each chart has a sentence with its finding
and a table of its numbers, for readers who cannot see it.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import pairwise
from typing import Any, Protocol, TypeVar
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from tidegate.core.text import escape_control_characters


@dataclass(frozen=True)
class ReportTable:
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
    table: ReportTable
    # Space in inches to the right of the axes, for the labels of lines.
    label_in: float = 0.2
    # Space in inches to the left of the axes, for the tick labels.
    ticks_in: float = 0.66
    # Space in inches below the tick labels, for a key.
    foot_in: float = 0.0
    height_in: float = 2.75


class StatusLight(StrEnum):
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
    standing: StatusLight
    # Name and value, the most important first.
    facts: Sequence[tuple[str, str]]
    # The fraction of the error budget that is left; below 0 it is overdrawn. `None` means unknown.
    budget_left: float | None
    # The worst verdict of each slice of time, oldest first.
    ribbon: Sequence[StatusLight] = ()
    ribbon_says: str = ""


@dataclass(frozen=True)
class ReportSection:
    """A part of the report with a heading of its own."""

    anchor: str
    title: str
    sentence: str = ""
    cards: Sequence[Card] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[ReportTable] = ()
    # What data are missing, and how to obtain them.
    missing: str = ""
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    subtitle: str
    facts: Sequence[tuple[str, str]]
    sections: Sequence[ReportSection]
    notes: Sequence[str] = ()


# Colours by meaning, for light and dark mode.
#
# Blue, amber, teal and brick differ in lightness too, so that colour-blind readers can distinguish
# them. Wherever a colour shows a verdict, a word or a shape shows it as well.


@dataclass(frozen=True)
class Colour:
    """A colour of one meaning, in light and in dark mode."""

    name: str
    light: str
    dark: str

    @property
    def variable(self) -> str:
        """The reference to this colour in a stylesheet."""
        return f"var(--{self.name})"


INK = Colour("ink", "#1c2228", "#e9edf1")
SOFT = Colour("soft", "#5a646e", "#a6b0ba")
AXIS = Colour("axis", "#b9c2ca", "#4a545e")
GRID = Colour("grid", "#e8ecef", "#262d35")
PAGE = Colour("page", "#fefefe", "#12171c")
PANEL = Colour("panel", "#f5f7f8", "#1a2027")
BLUE = Colour("blue", "#2a6898", "#74b3e2")
AMBER = Colour("amber", "#b06f14", "#e2a950")
TEAL = Colour("teal", "#24796c", "#5fc0ae")
BRICK = Colour("brick", "#ab3c3a", "#ef877f")
VIOLET = Colour("violet", "#725e9c", "#b7a4e0")
GREY = Colour("grey", "#6e7983", "#8b96a0")
PALE = Colour("pale", "#d3dae0", "#39434d")

ALL = (INK, SOFT, AXIS, GRID, PAGE, PANEL, BLUE, AMBER, TEAL, BRICK, VIOLET, GREY, PALE)

PRODUCED = BLUE
CONSUMED = TEAL
VERDICTS = {"met": TEAL, "warned": AMBER, "breached": BRICK, "no_data": GREY}
STABILITIES = {"stable": TEAL, "flooded": BRICK, "draining": BLUE}


def variables() -> str:
    """Return the stylesheet that defines all colours, for light and dark mode."""
    light = " ".join(f"--{colour.name}:{colour.light};" for colour in ALL)
    dark = " ".join(f"--{colour.name}:{colour.dark};" for colour in ALL)
    return (
        f":root {{ color-scheme: light dark; {light} }}\n"
        # Use the dark colours on screens only; paper is white.
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
    )


# Axes of charts: ticks at round values, and labels at the ends of lines instead of legends.
#
# A label has the colour of its line. Labels that would overlap are moved apart.


SMALL = 8.6
_DAY_S = 86400.0
_MONTH_S = 30 * _DAY_S
_TIME_STEPS_S = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10800, 21600, 43200, _DAY_S, 2 * _DAY_S, 7 * _DAY_S),
)
_LABEL_APART_POINTS = 11.5
# A background that keeps lines from crossing the text.
_HALO = {"facecolor": PAGE.light, "edgecolor": "none", "alpha": 0.8, "pad": 1.0}
# Beyond this ratio of highest to lowest value, a linear scale would flatten the low values.
_LOG_FROM_RATIO = 40.0


def days(moments: Sequence[datetime]) -> list[float]:
    """Convert times to positions on a time axis."""
    return [moment.timestamp() / _DAY_S for moment in moments]


def mark_of(points: Sequence[object]) -> str:
    """Return the marker of a line's points; a line of one point would be invisible without one."""
    return "o" if len(points) == 1 else ""


def time_axis(axes: Axes, window_s: float = 60.0) -> None:
    """Make the horizontal axis a time in UTC, from the first to the last time drawn.

    A single time is shown in the middle, with two windows on either side.
    """
    axes.margins(x=0.0)
    axes.autoscale_view()
    first_day, last_day = (float(day) for day in axes.dataLim.intervalx)
    # matplotlib would show years around a single time.
    if first_day == last_day:
        around_d = 2 * window_s / _DAY_S
        axes.set_xlim(first_day - around_d, first_day + around_d)
    begins_s, ends_s = (float(day) * _DAY_S for day in axes.get_xlim())
    months = max(math.ceil((ends_s - begins_s) / _MONTH_S / 5), 1)
    fitting = (step for step in _TIME_STEPS_S if (ends_s - begins_s) / step <= 5)
    step_s = next(fitting, months * _MONTH_S)
    first = math.ceil(begins_s / step_s)
    ticks_s = [step_s * number for number in range(first, math.floor(ends_s / step_s) + 1)]
    axes.xaxis.set_major_locator(FixedLocator([tick / _DAY_S for tick in ticks_s]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda day, _: _tick_text(day, step_s)))


def _tick_text(day: float, step_s: float) -> str:
    at = from_seconds(round(day * _DAY_S))
    # Show midnight as a date.
    if step_s >= _DAY_S or (at.hour, at.minute, at.second) == (0, 0, 0):
        return f"{at:%-d %b}"
    return f"{at:%H:%M}" if step_s >= 60 else f"{at:%H:%M:%S}"


def number_axis(axes: Axes, highest: float, ticks: int = 4) -> None:
    """Make the vertical axis begin at zero, with few ticks at round values."""
    axes.set_ylim(0.0, highest * 1.06 if highest > 0 else 1.0)
    axes.yaxis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def duration_axis(axes: Axes, lowest_s: float, highest_s: float) -> None:
    """Make the vertical axis a duration, logarithmic over a wide range."""
    if lowest_s > 0 and highest_s / lowest_s > _LOG_FROM_RATIO:
        axes.set_yscale("log")
        axes.set_ylim(lowest_s / 1.3, highest_s * 1.3)
        axes.yaxis.set_major_locator(LogLocator(10.0, numticks=6))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        scale = _scale_of(highest_s)
        step = MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(0.0, highest_s * 1.06 / scale)
        axes.set_ylim(0.0, highest_s * 1.06 if highest_s > 0 else 1.0)
        axes.yaxis.set_major_locator(
            FixedLocator([value * scale for value in step if value * scale <= highest_s * 1.06])
        )
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: duration(value)))


def _scale_of(duration_s: float) -> float:
    for scale in (3600.0, 60.0, 1.0, 1e-3):
        if duration_s >= 2 * scale:
            return scale
    return 1e-6


def name_line_ends(axes: Axes, ends: Sequence[tuple[float, str, Colour]]) -> None:
    """Write labels right of the axes at the ends of lines; move overlapping labels apart."""
    figure = axes.get_figure()
    if figure is None or not ends:
        return
    points_per_pixel = 72.0 / figure.dpi
    to_pixels = axes.transData.transform
    x = axes.get_xlim()[1]
    heights = [float(to_pixels((x, y))[1]) * points_per_pixel for y, _, _ in ends]
    for position, lifted in zip(
        sorted(range(len(ends)), key=lambda one: heights[one]),
        _apart(sorted(heights), _LABEL_APART_POINTS),
        strict=True,
    ):
        _, name, colour = ends[position]
        axes.annotate(
            name,
            (1.0, 0.0),
            xycoords="axes fraction",
            xytext=(
                5.0,
                lifted - float(axes.transAxes.transform((1.0, 0.0))[1]) * points_per_pixel,
            ),
            textcoords="offset points",
            ha="left",
            va="center",
            color=colour.light,
            fontsize=SMALL,
            annotation_clip=False,
        )


def _apart(heights: Sequence[float], distance: float) -> list[float]:
    """Return ascending heights, moved as little as possible until neighbours have this distance."""
    groups: list[tuple[float, int]] = []
    for height in heights:
        middle, size = height, 1
        while groups and middle - (size - 1) * distance / 2 < (
            groups[-1][0] + (groups[-1][1] - 1) * distance / 2 + distance
        ):
            before, before_size = groups.pop()
            middle = (middle * size + before * before_size) / (size + before_size)
            size += before_size
        groups.append((middle, size))
    return [
        middle + (place - (size - 1) / 2) * distance
        for middle, size in groups
        for place in range(size)
    ]


def label_inside(
    axes: Axes,
    words: str,
    at: tuple[float, float],
    offset_points: tuple[float, float] = (0.0, 0.0),
    *,
    colour: Colour = INK,
    align: str = "left",
    bold: bool = False,
    across: bool = False,
) -> None:
    """Write text inside the axes, on a background that keeps it readable.

    If `across` is true, the height is a fraction of the axes instead of a value.
    """
    axes.annotate(
        escape_control_characters(words),
        at,
        xycoords=("data", "axes fraction") if across else "data",
        xytext=offset_points,
        textcoords="offset points",
        ha=align,
        va="center",
        color=colour.light,
        fontsize=SMALL,
        fontweight="bold" if bold else "normal",
        bbox=_HALO,
        annotation_clip=False,
        zorder=10,
    )


def limit_line(
    axes: Axes, level: float, words: str, colour: Colour = SOFT, *, below: bool = False
) -> None:
    """Draw a limit as a dashed line, with its label above or below the left end."""
    axes.axhline(level, color=colour.light, linewidth=1.0, linestyle=(0, (4, 3)))
    axes.annotate(
        escape_control_characters(words),
        (0.0, level),
        xycoords=("axes fraction", "data"),
        xytext=(3.0, -6.0 if below else 6.0),
        textcoords="offset points",
        ha="left",
        va="center",
        color=colour.light,
        fontsize=SMALL,
        bbox=_HALO,
    )


# Charts as pictures: SVG for a page.
#
# matplotlib draws in the light colours. In the SVG each colour is replaced by the stylesheet's
# variable of the same meaning. The chart thereby follows the reader's light or dark mode. Text
# stays text, in the font of the page. The output does not depend on the date or the machine.


WIDTH_IN = 4.85
_TOP_IN, _BOTTOM_IN = 0.34, 0.34

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    # A name such as $x$ must not be parsed as mathematics.
    "text.parse_math": False,
    "text.color": INK.light,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.edgecolor": AXIS.light,
    "axes.linewidth": 0.9,
    "axes.labelcolor": SOFT.light,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "grid.color": GRID.light,
    "grid.linewidth": 0.9,
    "xtick.color": AXIS.light,
    "ytick.color": AXIS.light,
    "xtick.labelcolor": SOFT.light,
    "ytick.labelcolor": SOFT.light,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "ytick.major.size": 0.0,
    "ytick.minor.size": 0.0,
    "xtick.minor.size": 0.0,
    "ytick.major.pad": 5.0,
    "lines.linewidth": 1.7,
    "lines.solid_capstyle": "round",
    "hatch.linewidth": 0.7,
    "svg.fonttype": "none",
    "svg.id": None,
    "pdf.fonttype": 42,
}

_VARIABLES = {colour.light: colour.variable for colour in ALL}
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_FAMILY = re.compile(r"font-family: [^;]*;? ?")
_FONT = re.compile(r"font: (.*?px) [^;]*")
_DECIMALS = re.compile(r"(\d+\.\d{2})\d+")
_NAMESPACE = re.compile(r"^\{[^}]*\}")
_NOT_TO_BE_SHOWN = {"metadata", "style"}


def svg_of(chart: Chart, name: str, description: str) -> str:
    """Return the chart as an SVG element; `name` makes its ids unique within the page."""
    with mpl.rc_context(STYLE | {"svg.hashsalt": name}):
        figure = Figure(figsize=(WIDTH_IN, chart.height_in))
        FigureCanvasSVG(figure)
        draw_into(figure, chart)
        written = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(written, format="svg", metadata=nothing)
    return _for_a_page(written.getvalue(), description)


def draw_into(figure: Figure, chart: Chart) -> Axes:
    """Draw the chart into a figure, below the text that says what it measures."""
    width, height = figure.get_size_inches()
    axes = figure.add_axes(
        (
            chart.ticks_in / width,
            (_BOTTOM_IN + chart.foot_in) / height,
            (width - chart.ticks_in - chart.label_in) / width,
            (height - _TOP_IN - _BOTTOM_IN - chart.foot_in) / height,
        )
    )
    chart.draw(axes)
    figure.text(
        0.06 / width,
        (height - 0.05) / height,
        chart.measures,
        ha="left",
        va="top",
        fontsize=9.0,
        color=SOFT.light,
    )
    return axes


def _for_a_page(svg: str, description: str) -> str:
    drawn = ElementTree.fromstring(svg)
    picture = ElementTree.Element(
        "svg",
        {
            "viewBox": drawn.attrib["viewBox"],
            "role": "img",
            "aria-label": escape_control_characters(description),
        },
    )
    picture.extend(_adapted(child) for child in drawn)
    return ElementTree.tostring(picture, encoding="unicode")


def _adapted(element: ElementTree.Element) -> ElementTree.Element:
    """Return a copy of an SVG element without namespaces, with page colours and shorter numbers."""
    adapted = ElementTree.Element(_NAMESPACE.sub("", element.tag))
    adapted.text = (element.text or "").strip()
    for name, value in element.attrib.items():
        name = _NAMESPACE.sub("", name)
        # The ids of groups repeat from figure to figure; the other ids are salted with the chart's
        # name.
        if adapted.tag == "g" and name == "id":
            continue
        if name == "style":
            value = _FONT.sub(r"font: \1 var(--sans)", _FAMILY.sub("", value))
            value = _COLOUR.sub(lambda found: _VARIABLES.get(found[0], found[0]), value)
        elif name != "href":
            value = " ".join(_DECIMALS.sub(r"\1", value).split())
        adapted.set(name, value)
    children = (_adapted(child) for child in element)
    adapted.extend(child for child in children if child.tag not in _NOT_TO_BE_SHOWN)
    return adapted


# Reduction of long series to a number of points that can be drawn.


POINTS_MAX = 220
ROWS_MAX = 24

T = TypeVar("T")


def slices(items: Sequence[T], at_most: int) -> list[Sequence[T]]:
    """Divide items into at most `at_most` slices of neighbours, of equal length except the last."""
    if not items:
        return []
    size = -(-len(items) // at_most)
    return [items[begin : begin + size] for begin in range(0, len(items), size)]


def shortened(items: Sequence[T], merge: Callable[[Sequence[T]], T], at_most: int) -> list[T]:
    """Return one merged item per slice of neighbours, at most `at_most` in total."""
    return [merge(part) for part in slices(items, at_most)]


def rows_behind(items: Sequence[T], worst: Callable[[T], float]) -> list[T]:
    """Return the item with the highest value of each slice, for the table of a chart."""
    return [max(part, key=worst) for part in slices(items, ROWS_MAX)]


def window_s(begins: Sequence[datetime]) -> float:
    """Return the length of windows in seconds, the smallest distance between two of them.

    A single window counts as one minute.
    """
    distances = (after - before for before, after in pairwise(begins))
    return min((one.total_seconds() for one in distances), default=60.0)


# Chart of a duration's median, p95 and p99 over time, with promised limits.


# A limit above this multiple of the highest value is not drawn: it would flatten the lines.
_FAR = 20


class PercentileWindow(Protocol):
    """One window of a duration, with its percentiles."""

    @property
    def begins(self) -> datetime: ...
    @property
    def p50_s(self) -> float: ...
    @property
    def p95_s(self) -> float: ...
    @property
    def p99_s(self) -> float: ...


@dataclass(frozen=True)
class LimitLine:
    """A warning or breaching point of an agreement."""

    words: str
    at_s: float
    colour: Colour = BRICK
    # True puts the label below the line, for a lower limit next to a higher one.
    below: bool = False


def draw_percentiles(
    axes: Axes,
    points: Sequence[PercentileWindow],
    window_s: float,
    limits: Sequence[LimitLine] = (),
) -> None:
    """Draw percentiles over time; `points` are oldest first and not empty."""
    at = days([point.begins for point in points])
    p50, p95, p99 = ([getattr(p, name) for p in points] for name in ("p50_s", "p95_s", "p99_s"))
    axes.fill_between(at, p50, p95, color=BLUE.light, alpha=0.22, linewidth=0)
    axes.fill_between(at, p95, p99, color=AMBER.light, alpha=0.22, linewidth=0)
    mark = mark_of(points)
    axes.plot(at, p99, marker=mark, color=AMBER.light)
    axes.plot(at, p95, marker=mark, color=GREY.light, linewidth=1.0)
    axes.plot(at, p50, marker=mark, color=BLUE.light)
    time_axis(axes, window_s)
    lowest = min((value for value in p50 if value > 0), default=0.0)
    near = [limit for limit in limits if limit.at_s <= _FAR * max(p99)]
    duration_axis(axes, lowest, max(max(p99), *(limit.at_s * 1.08 for limit in near), 0.0))
    for limit in near:
        limit_line(axes, limit.at_s, limit.words, limit.colour, below=limit.below)
    name_line_ends(
        axes, [(p50[-1], "median", BLUE), (p95[-1], "p95", GREY), (p99[-1], "p99", AMBER)]
    )


# Formatting of numbers: three significant digits, thousands separated, always with a unit.
#
# The same number looks the same in a sentence, a table and a chart.


# A narrow space at which lines do not break.
THIN = "\u202f"
NO_VALUE = "–"


def number(value: float | None) -> str:
    """Format a number with at least three significant digits: `0.0312`, `4.27`, `63.1`, `12 408`.

    `None`, NaN and infinity become a dash.
    """
    if value is None or not math.isfinite(value):
        return NO_VALUE
    size = abs(value)
    if size == 0:
        return "0"
    decimals = 0 if size >= 99.95 else min(max(2 - math.floor(math.log10(size)), 0), 6)
    text = f"{size:,.{decimals}f}"
    if "." in text and value == int(value):
        text = text.rstrip("0").rstrip(".")
    return ("−" if value < 0 else "") + text.replace(",", THIN)


def count(value: float | None) -> str:
    """Format a whole number."""
    if value is None or not math.isfinite(value):
        return NO_VALUE
    return f"{value:,.0f}".replace(",", THIN).replace("-", "−")


def counted(value: int, one: str, many: str = "") -> str:
    """Format a number of things: `1 queue`, `12 queues`."""
    return f"{count(value)} {one if value == 1 else many or one + 's'}"


def with_unit(value: float | None, unit: str) -> str:
    """Format a number with its unit; a missing number becomes a dash without a unit."""
    text = number(value)
    return text if text == NO_VALUE or not unit else f"{text} {unit}"


def rate(value_per_s: float | None) -> str:
    """Format a number of messages per second."""
    return with_unit(value_per_s, "msg/s")


def percent(fraction: float | None) -> str:
    """Format a fraction of one as a percentage: `98.8 %`."""
    if fraction is None or not math.isfinite(fraction):
        return NO_VALUE
    size = abs(100 * fraction)
    # Rounding must not turn nearly all into 100 %, nor nearly none into 0 %.
    if 99.995 <= size < 100 and fraction > 0:
        return "over 99.99 %"
    if 0 < size < 0.005 and fraction > 0:
        return "under 0.01 %"
    decimals = 2 if 99 < size < 100 or 0 < size < 1 else 1
    text = f"{size:,.{decimals}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return ("−" if fraction < 0 and text != "0" else "") + text.replace(",", THIN) + " %"


_DURATIONS = ((86400.0, "d", 2), (3600.0, "h", 2), (60.0, "min", 2), (1.0, "s", 1), (1e-3, "ms", 1))


def duration(duration_s: float | None) -> str:
    """Format a duration in a suitable unit: `312 µs`, `4.27 ms`, `1.5 s`, `3.2 h`."""
    if duration_s is None or not math.isfinite(duration_s):
        return NO_VALUE
    size = abs(duration_s)
    for scale, unit, at_least in _DURATIONS:
        if size >= scale * at_least:
            return with_unit(duration_s / scale, unit)
    return "0 s" if size == 0 else with_unit(duration_s / 1e-6, "µs")


def moment(at: datetime) -> str:
    """Format a time to the minute, in UTC: `16 Nov 2026, 08:00`."""
    return f"{at.astimezone(UTC):%-d %b %Y, %H:%M}"


def clock(at: datetime) -> str:
    """Format a time to the second, in UTC, with its date: `16 Nov 08:00:10`."""
    return f"{at.astimezone(UTC):%-d %b %H:%M:%S}"


def from_seconds(at_s: float) -> datetime:
    """Return the time of a number of seconds since 1970."""
    return datetime.fromtimestamp(at_s, UTC)


def sentence(words: str) -> str:
    """Add a full stop unless the text ends with a punctuation mark."""
    return words if words.endswith((".", "!", "?")) else f"{words}."
