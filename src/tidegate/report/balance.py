"""Chart of whether a queue fills or empties: rates in and out, and the state of each window."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from matplotlib.axes import Axes

from tidegate.report.axes import days, mark_of, name_line_ends, number_axis, say, time_axis
from tidegate.report.chart import Chart, Table
from tidegate.report.figures import clock, count, duration, percent, rate
from tidegate.report.learned import Learned, grouped
from tidegate.report.palette import BLUE, BRICK, CONSUMED, PRODUCED, STABILITIES
from tidegate.report.series import POINTS_MAX, rows_behind, shortened

_STATES = ("flooded", "draining", "stable")
# Bottom and height of each state in the ribbon, as fractions of the axes' height.
_RIBBON = {"flooded": (0.9, 0.05), "stable": (0.891, 0.018), "draining": (0.9, -0.05)}


@dataclass(frozen=True)
class BalanceWindow:
    """Rates and state of a queue in one window."""

    begins: datetime
    produced_per_s: float
    consumed_per_s: float
    waiting: float
    state: str  # stable, flooded or draining


def balance_windows(learned: Learned, queues: Collection[str]) -> dict[str, list[BalanceWindow]]:
    """Return the windows of some queues, oldest first."""
    columns = ("queue", "window", "produced_per_s", "consumed_per_s", "waiting", "stability")
    rows = learned.rows("stability", columns, ("queue", queues), ("queue", "window"))
    return {
        queue: [
            BalanceWindow(
                begins=row["window"],
                produced_per_s=row["produced_per_s"],
                consumed_per_s=row["consumed_per_s"],
                waiting=row["waiting"],
                state=row["stability"],
            )
            for row in windows
        ]
        for queue, windows in grouped(rows, "queue").items()
    }


def _merged(windows: Sequence[BalanceWindow]) -> BalanceWindow:
    n = len(windows)
    states = [window.state for window in windows]
    # The most frequent state; among equals the first in `_STATES`, which needs attention most.
    state = max(_STATES, key=lambda one: (states.count(one), -_STATES.index(one)))
    return BalanceWindow(
        begins=windows[0].begins,
        produced_per_s=sum(window.produced_per_s for window in windows) / n,
        consumed_per_s=sum(window.consumed_per_s for window in windows) / n,
        waiting=max(window.waiting for window in windows),
        state=state,
    )


def balance_chart(windows: Sequence[BalanceWindow], window_s: float) -> Chart:
    """Return the rates in and out with the state of each window.

    `windows` are oldest first and not empty.
    """
    points = shortened(windows, _merged, POINTS_MAX)
    each = -(-len(windows) // POINTS_MAX)
    step_s = window_s * each

    def draw(axes: Axes) -> None:
        at = days([point.begins for point in points])
        produced = [point.produced_per_s for point in points]
        consumed = [point.consumed_per_s for point in points]
        more = [p > c for p, c in zip(produced, consumed, strict=True)]
        less = [p < c for p, c in zip(produced, consumed, strict=True)]
        filled: dict[str, Any] = {"linewidth": 0, "interpolate": True, "alpha": 0.3}
        axes.fill_between(at, produced, consumed, where=more, color=BRICK.light, **filled)
        axes.fill_between(at, produced, consumed, where=less, color=BLUE.light, **filled)
        mark = mark_of(points)
        axes.plot(at, consumed, marker=mark, color=CONSUMED.light, linewidth=1.4)
        axes.plot(at, produced, marker=mark, color=PRODUCED.light, linewidth=1.4)
        time_axis(axes, step_s)
        # Leave space above the lines for the ribbon.
        number_axis(axes, max(*produced, *consumed) * 1.3)
        _draw_ribbon(axes, points, step_s)
        name_line_ends(
            axes,
            [(produced[-1], "in", PRODUCED), (consumed[-1], "out", CONSUMED)],
        )

    shares = {
        state: sum(window.state == state for window in windows) / len(windows) for state in _STATES
    }
    fullest = max(windows, key=lambda window: window.waiting)
    behind = rows_behind(windows, lambda window: window.waiting)
    drawn = f" Each point is the mean of {each} windows of {duration(window_s)}."
    return Chart(
        title="Stability",
        sentence=(
            f"Stable in {percent(shares['stable'])} of the windows, flooded in "
            f"{percent(shares['flooded'])}, draining in {percent(shares['draining'])}. Most "
            f"messages waited at {clock(fullest.begins)} UTC: {count(fullest.waiting)}."
            + (drawn if each > 1 else "")
        ),
        measures="msg/s, and the state of each window above",
        draw=draw,
        label_in=0.42,
        table=Table(
            f"Windows of {duration(window_s)}, of each stretch the one with most waiting.",
            ("window begins (UTC)", "in", "out", "waiting", "state"),
            [
                (
                    clock(window.begins),
                    rate(window.produced_per_s),
                    rate(window.consumed_per_s),
                    count(window.waiting),
                    window.state,
                )
                for window in behind
            ],
            rows_in_all=len(windows),
        ),
    )


def _draw_ribbon(axes: Axes, points: Sequence[BalanceWindow], step_s: float) -> None:
    """Draw the states along the top, flooded above the middle and draining below it."""
    begins = days([point.begins for point in points])
    step_d = step_s / 86400.0
    runs = [(state, len(list(run))) for state, run in groupby(point.state for point in points)]
    longest = dict(sorted(runs, key=lambda run: run[1]))
    named: set[str] = set()
    run_begins = 0
    for state, length in runs:
        left, right = begins[run_begins], begins[run_begins + length - 1] + step_d
        # Draw short runs wide enough to be visible.
        right = max(right, left + 0.006 * (begins[-1] - begins[0]))
        foot, height = _RIBBON.get(state, _RIBBON["stable"])
        axes.fill_between(
            [left, min(right, float(axes.get_xlim()[1]))],
            [foot] * 2,
            [foot + height] * 2,
            transform=axes.get_xaxis_transform(),
            color=STABILITIES.get(state, STABILITIES["stable"]).light,
            linewidth=0,
        )
        if state not in named and state != "stable" and length == longest[state]:
            named.add(state)
            say(
                axes,
                state,
                (float(left + right) / 2, foot + 1.6 * height),
                colour=STABILITIES[state],
                align="center",
                across=True,
            )
        run_begins += length
