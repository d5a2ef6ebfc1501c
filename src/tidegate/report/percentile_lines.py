"""Chart of a duration's median, p95 and p99 over time, with promised limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from matplotlib.axes import Axes

from tidegate.report.axes import days, duration_axis, limit_line, mark_of, name_line_ends, time_axis
from tidegate.report.palette import AMBER, BLUE, BRICK, GREY, Colour

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
class Limit:
    """A warning or breaching point of an agreement."""

    words: str
    at_s: float
    colour: Colour = BRICK
    # True puts the label below the line, for a lower limit next to a higher one.
    below: bool = False


def draw_percentiles(
    axes: Axes, points: Sequence[PercentileWindow], window_s: float, limits: Sequence[Limit] = ()
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
