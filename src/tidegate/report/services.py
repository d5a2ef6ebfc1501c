"""Charts of an HTTP service: response times, requests, instances."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from statistics import fmean, median_low

from matplotlib.axes import Axes

from tidegate.report.axes import days, mark_of, name_line_ends, number_axis, say, time_axis
from tidegate.report.chart import Chart, Table
from tidegate.report.figures import clock, count, counted, duration, number, percent, with_unit
from tidegate.report.http_windows import HttpWindow, worst_of
from tidegate.report.palette import AMBER, BLUE, BRICK, GREY, TEAL, Colour
from tidegate.report.percentile_lines import Limit, draw_percentiles
from tidegate.report.series import POINTS_MAX, rows_behind, shortened
from tidegate.report.violations import Turns

# The position of the marks of missed requests, as fractions of the axes' height.
_MISSED_FOOT, _MISSED_TOP = 0.93, 0.985


def response_chart(windows: Sequence[HttpWindow], limits: Sequence[Limit]) -> Chart:
    """Return response times with warning and breaching points; `windows` must have responses."""
    window_s = windows[0].length_s
    points = shortened(windows, worst_of, POINTS_MAX)
    worst = max(windows, key=lambda window: window.p99_s)
    middle_s = median_low(window.p50_s for window in windows)
    return Chart(
        title="Response time",
        sentence=(
            f"In a typical window half of the requests took at most {duration(middle_s)}; the "
            f"slowest, at {clock(worst.begins)} UTC, had a p99 of {duration(worst.p99_s)}."
            + _each(windows, points, "the worst")
        ),
        measures="as clients see it, waiting in the door included",
        draw=lambda axes: draw_percentiles(axes, points, window_s, limits),
        label_in=0.62,
        table=Table(
            f"Windows of {duration(window_s)}, of each stretch the one with the highest p99.",
            ("window begins (UTC)", "responses", "median", "p95", "p99"),
            [
                (
                    clock(window.begins),
                    count(window.responses),
                    duration(window.p50_s),
                    duration(window.p95_s),
                    duration(window.p99_s),
                )
                for window in rows_behind(windows, lambda window: window.p99_s)
            ],
            rows_in_all=len(windows),
        ),
    )


def requests_chart(windows: Sequence[HttpWindow]) -> Chart:
    """Return requests per second, with the windows in which some were missed.

    `windows` are oldest first and not empty.
    """
    window_s = windows[0].length_s
    points = shortened(windows, worst_of, POINTS_MAX)
    busiest = max(windows, key=lambda window: window.answered_per_s)
    mean_per_s = fmean(window.answered_per_s for window in windows)
    missed = sum(window.missed for window in windows)

    def draw(axes: Axes) -> None:
        at = days([point.begins for point in points])
        rates = [point.answered_per_s for point in points]
        axes.fill_between(at, rates, color=BLUE.light, alpha=0.14, linewidth=0)
        axes.plot(at, rates, marker=mark_of(points), color=BLUE.light)
        time_axis(axes, window_s)
        # Leave space above the line for the marks.
        number_axis(axes, max(rates) * 1.15)
        spoiled = [day for day, point in zip(at, points, strict=True) if point.missed > 0]
        axes.vlines(
            spoiled,
            _MISSED_FOOT,
            _MISSED_TOP,
            transform=axes.get_xaxis_transform(),
            color=BRICK.light,
            linewidth=1.6,
        )
        if spoiled:
            side = "left" if spoiled[0] < (at[0] + at[-1]) / 2 else "right"
            shift = 4.0 if side == "left" else -4.0
            say(
                axes,
                "missed",
                (spoiled[0], 0.86),
                (shift, 0.0),
                colour=BRICK,
                align=side,
                across=True,
            )

    return Chart(
        title="Requests",
        sentence=(
            f"{with_unit(mean_per_s, 'req/s')} on average, at most "
            f"{with_unit(busiest.answered_per_s, 'req/s')} at {clock(busiest.begins)} UTC. "
            + _missed_words(missed, windows)
            + _each(windows, points, "the mean")
        ),
        measures="req/s; above, windows in which some were missed",
        draw=draw,
        table=Table(
            f"Windows of {duration(window_s)}, of each stretch the one with most missed, then most "
            "requests.",
            ("window begins (UTC)", "answered", "missed"),
            [
                (
                    clock(window.begins),
                    with_unit(window.answered_per_s, "req/s"),
                    count(window.missed),
                )
                for window in rows_behind(windows, _missed_then_busy)
            ],
            rows_in_all=len(windows),
        ),
    )


def _missed_then_busy(window: HttpWindow) -> float:
    return window.missed * 1e9 + window.answered_per_s


def _missed_words(missed: int, windows: Sequence[HttpWindow]) -> str:
    if not missed:
        return "None were missed: turned away, cut off, or answered with 500 and above."
    worst = max(windows, key=lambda window: window.missed)
    share = percent(missed / sum(window.came for window in windows))
    return (
        f"{count(missed)} ({share}) were turned away, cut off, or answered with 500 and above, "
        f"most at {clock(worst.begins)} UTC."
    )


def instances_chart(windows: Sequence[HttpWindow], turns: Turns, until: datetime) -> Chart:
    """Return the number of instances over time, with warnings and violations.

    `windows` are oldest first and not empty.
    """
    window_s = windows[0].length_s
    points = shortened(windows, worst_of, POINTS_MAX)
    served_s = sum(window.serving * window.length_s for window in windows)
    most, least = (pick(windows, key=lambda window: window.serving).serving for pick in (max, min))
    with_spares = any(window.spare > 0 for window in windows)

    def draw(axes: Axes) -> None:
        at = days([point.begins for point in points])
        serving = [point.serving for point in points]
        step = "steps-post" if len(points) > 1 else "default"
        ends: list[tuple[float, str, Colour]] = [(serving[-1], "serving", TEAL)]
        if with_spares:
            spare = [point.spare for point in points]
            axes.plot(at, spare, drawstyle=step, color=GREY.light, linewidth=1.0)
            ends.append((spare[-1], "spare", GREY))
        axes.plot(at, serving, marker=mark_of(points), drawstyle=step, color=TEAL.light)
        time_axis(axes, window_s)
        number_axis(axes, max(*serving, *(point.spare for point in points), 1.0) * 1.2)
        _mark_turns(axes, turns, until)
        name_line_ends(axes, ends)

    span = (
        number(least) if round(least, 2) == round(most, 2) else f"{number(least)} to {number(most)}"
    )
    return Chart(
        title="Instances",
        sentence=(
            f"{span} served, for {duration(served_s)} together. {_turn_words(turns)}"
            + _each(windows, points, "the mean")
        ),
        measures="instances",
        draw=draw,
        label_in=0.62,
        table=Table(
            f"Windows of {duration(window_s)}, of each stretch the one with most instances.",
            ("window begins (UTC)", "serving", "spare"),
            [
                (clock(window.begins), number(window.serving), number(window.spare))
                for window in rows_behind(windows, lambda window: window.serving)
            ],
            rows_in_all=len(windows),
        ),
    )


def _mark_turns(axes: Axes, turns: Turns, until: datetime) -> None:
    """Draw violations as bands and warnings as short lines at the bottom, with a label each."""
    left, right = (float(edge) for edge in axes.get_xlim())
    warned = [day for day in days(turns.warned) if left <= day <= right]
    axes.vlines(
        warned, 0.0, 0.06, transform=axes.get_xaxis_transform(), color=AMBER.light, linewidth=1.6
    )
    if warned:
        say(axes, "warned", (warned[0], 0.11), colour=AMBER, across=True)
    named = False
    for episode in turns.episodes:
        begins, ends = days([episode.begins, episode.ends or until])
        if ends < left or begins > right:
            continue
        # Draw short violations wide enough to be visible.
        ends = max(ends, begins + 0.004 * (right - left))
        axes.axvspan(
            max(begins, left), min(ends, right), color=BRICK.light, alpha=0.25, linewidth=0
        )
        if not named:
            say(axes, "violated", (max(begins, left), 0.95), colour=BRICK, across=True)
            named = True


def _turn_words(turns: Turns) -> str:
    broken, warned = len(turns.episodes), len(turns.warned)
    if not broken and not warned:
        return "No promise was warned of or broken."
    return (
        f"Promises were warned of {counted(warned, 'time')} and broken {counted(broken, 'time')}."
    )


def _each(windows: Sequence[HttpWindow], points: Sequence[HttpWindow], what: str) -> str:
    each = -(-len(windows) // max(len(points), 1))
    if each <= 1:
        return ""
    windows_of = f"{counted(each, 'window')} of {duration(windows[0].length_s)}"
    return f" Each point is {what} of {windows_of}."
