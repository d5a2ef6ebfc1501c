"""Axes of charts: ticks at round values, and labels at the ends of lines instead of legends.

A label has the colour of its line. Labels that would overlap are moved apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from tidegate.core.harmless import harmless
from tidegate.report.figures import duration, from_seconds, number
from tidegate.report.palette import INK, PAGE, SOFT, Colour

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
    axes.xaxis.set_major_formatter(FuncFormatter(lambda day, _: _tick_words(day, step_s)))


def _tick_words(day: float, step_s: float) -> str:
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


def say(
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
        harmless(words),
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
        harmless(words),
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
