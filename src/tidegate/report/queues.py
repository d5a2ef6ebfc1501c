"""The sections on the busiest queues: waits, stability, capacity, forecast.

A system may have thousands of queues, so only the busiest are shown. A note gives the number of
queues that are not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from statistics import median_low
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from tidegate.agreements.document import Agreement
from tidegate.core.text import escape_control_characters
from tidegate.report.agreements import format_promise
from tidegate.report.capacity import capacity_chart, fitted_from, forecasts, operating_points
from tidegate.report.charts import (
    AMBER,
    BLUE,
    BRICK,
    CONSUMED,
    GREY,
    INK,
    PAGE,
    PALE,
    POINTS_MAX,
    PRODUCED,
    SMALL,
    SOFT,
    STABILITIES,
    VIOLET,
    Chart,
    Colour,
    LimitLine,
    ReportSection,
    ReportTable,
    clock,
    count,
    counted,
    days,
    draw_percentiles,
    duration,
    label_inside,
    mark_of,
    name_line_ends,
    number_axis,
    percent,
    rate,
    rows_behind,
    shortened,
    time_axis,
    window_s,
)
from tidegate.telemetry.learned import LearnedModels, grouped

QUEUES_MAX = 8


def queue_sections(
    learned: LearnedModels,
    traffic: Sequence[tuple[str, float]],
    queues_max: int = QUEUES_MAX,
    agreements: Sequence[Agreement] = (),
) -> list[ReportSection]:
    """Return a section for each of the busiest queues; without queues, one that says so."""
    if not traffic:
        return [
            ReportSection(
                "queues",
                "Queues",
                missing="No queue was seen: nodes record what they do when `telemetry.enabled` is "
                "true. Let one work for a minute, then run `tidegate learn`.",
            )
        ]
    shown = [queue for queue, _ in traffic[:queues_max]]
    waits, balances = wait_windows(learned, shown), balance_windows(learned, shown)
    points, capacities = operating_points(learned, shown), learned.models("capacity")
    ahead, refused = forecasts(learned, shown)
    total = sum(messages for _, messages in traffic)
    sections = []
    for position, (queue, messages) in enumerate(traffic[:queues_max], start=1):
        charts: list[Chart] = []
        if windows := waits.get(queue):
            charts.append(wait_chart(windows, wait_limit(queue, agreements)))
        if balance := balances.get(queue):
            length_s = window_s([window.begins for window in balance])
            charts.append(balance_chart(balance, length_s))
        if seen := points.get(queue):
            charts.append(capacity_chart(seen, fitted_from(capacities.get(queue))))
        if queue in ahead:
            charts.append(ahead[queue])
        sections.append(
            ReportSection(
                f"queue-{position}",
                queue,
                _sentence(position, len(traffic), messages, total),
                charts=charts,
                notes=[
                    *([refused[queue]] if queue in refused else []),
                    *_left_out(position, shown, traffic),
                ],
            )
        )
    return sections


def traffic_by_queue(learned: LearnedModels) -> list[tuple[str, float]]:
    """Return every queue with its number of incoming messages, the busiest first."""
    table = learned.table("stability", ("queue", "produced_per_s", "seconds"))
    if table is None or not table.num_rows:
        return []
    produced = pc.multiply(table.column("produced_per_s"), table.column("seconds"))
    sums = (
        pa.table({"queue": table.column("queue"), "messages": produced})
        .group_by("queue")
        .aggregate([("messages", "sum")])
        .sort_by([("messages_sum", "descending"), ("queue", "ascending")])
    )
    return list(
        zip(sums.column("queue").to_pylist(), sums.column("messages_sum").to_pylist(), strict=True)
    )


def _sentence(position: int, queues: int, messages: float, total: float) -> str:
    share = f", {percent(messages / total)} of all" if total > 0 else ""
    which = "The busiest" if position == 1 else f"Number {position} by traffic"
    return f"{which} of {count(queues)}: {count(messages)} messages came in{share}."


def _left_out(
    position: int, shown: Sequence[str], traffic: Sequence[tuple[str, float]]
) -> list[str]:
    if position < len(shown) or len(shown) == len(traffic):
        return []
    rest = [messages for _, messages in traffic[len(shown) :]]
    total = sum(messages for _, messages in traffic)
    share = f", {percent(sum(rest) / total)} of all" if total > 0 else ""
    return [
        f"{counted(len(rest), 'more queue')} {'is' if len(rest) == 1 else 'are'} not drawn: "
        f"{count(sum(rest))} messages came in there{share}. "
        f"`tidegate report --queues {len(traffic)}` draws all."
    ]


# Chart of how long messages waited: median, p95 and p99 over time.


_MUCH_LONGER = 2.0
_WAIT_COLUMNS = (
    "queue",
    "window",
    "window_s",
    "messages",
    "wait_s_p50",
    "wait_s_p95",
    "wait_s_p99",
)


@dataclass(frozen=True)
class WaitWindow:
    """The waits that ended within one window."""

    begins: datetime
    length_s: float
    messages: int
    p50_s: float
    p95_s: float
    p99_s: float


@dataclass(frozen=True)
class WaitLimit:
    """The limit that an agreement sets for waits."""

    words: str
    breach_s: float


def wait_windows(learned: LearnedModels, queues: Collection[str]) -> dict[str, list[WaitWindow]]:
    """Return the windows of some queues, oldest first."""
    rows = learned.rows("lifecycle", _WAIT_COLUMNS, ("queue", queues), ("queue", "window"))
    return {
        queue: [
            WaitWindow(
                begins=row["window"],
                length_s=row["window_s"],
                messages=row["messages"],
                p50_s=row["wait_s_p50"],
                p95_s=row["wait_s_p95"],
                p99_s=row["wait_s_p99"],
            )
            for row in windows
            if row["wait_s_p50"] is not None
        ]
        for queue, windows in grouped(rows, "queue").items()
    }


def wait_limit(queue: str, agreements: Sequence[Agreement]) -> WaitLimit | None:
    """Return the strictest promise about the wait in a queue, or `None`."""
    promised = [
        (metric.breach, f"{agreement.name}: {format_promise(metric)}")
        for agreement in agreements
        if agreement.governs_queue(queue)
        for metric in agreement.metrics
        if metric.stem == "wait"
    ]
    if not promised:
        return None
    breach_s, words = min(promised)
    return WaitLimit(words, breach_s)


def _worst(windows: Sequence[WaitWindow]) -> WaitWindow:
    return WaitWindow(
        begins=windows[0].begins,
        length_s=sum(window.length_s for window in windows),
        messages=sum(window.messages for window in windows),
        p50_s=max(window.p50_s for window in windows),
        p95_s=max(window.p95_s for window in windows),
        p99_s=max(window.p99_s for window in windows),
    )


def wait_chart(windows: Sequence[WaitWindow], limit: WaitLimit | None = None) -> Chart:
    """Return percentiles of the wait; `windows` are oldest first and not empty."""
    window_s = windows[0].length_s
    points = shortened(windows, _worst, POINTS_MAX)
    worst = max(windows, key=lambda window: window.p99_s)

    limits = [LimitLine(limit.words, limit.breach_s)] if limit else []

    def draw(axes: Axes) -> None:
        draw_percentiles(axes, points, window_s, limits)

    each = len(windows) / max(len(points), 1)
    sentence = (
        f"{_typical(windows)}; the slowest, at {clock(worst.begins)} UTC, had a p99 of "
        f"{duration(worst.p99_s)}.{_crowded(windows)}"
    )
    if each > 1:
        sentence += (
            f" Each point is the worst of {counted(round(each), 'window')} of {duration(window_s)}."
        )
    behind = rows_behind(windows, lambda window: window.p99_s)
    return Chart(
        title="Waiting time",
        sentence=sentence,
        measures="wait until delivery",
        draw=draw,
        label_in=0.62,
        table=ReportTable(
            f"Windows of {duration(window_s)}, of each stretch the one with the highest p99.",
            ("window begins (UTC)", "messages", "median", "p95", "p99"),
            [
                (
                    clock(window.begins),
                    count(window.messages),
                    duration(window.p50_s),
                    duration(window.p95_s),
                    duration(window.p99_s),
                )
                for window in behind
            ],
            rows_in_all=len(windows),
        ),
    )


def _typical(windows: Sequence[WaitWindow]) -> str:
    middle_s = median_low(window.p50_s for window in windows)
    return f"In a typical window half of the messages waited at most {duration(middle_s)}"


def _crowded(windows: Sequence[WaitWindow]) -> str:
    """Return a sentence if most messages waited much longer than the typical window suggests."""
    middle_s = median_low(window.p50_s for window in windows)
    half = sum(window.messages for window in windows) / 2
    seen = 0
    for window in sorted(windows, key=lambda window: window.p50_s):
        seen += window.messages
        # The windows before this one hold less than half of the messages.
        if seen >= half:
            if window.p50_s < _MUCH_LONGER * middle_s:
                return ""
            slow = duration(window.p50_s)
            return f" Most messages came in crowded windows, whose median was {slow} or longer."
    return ""


# Chart of whether a queue fills or empties: rates in and out, and the state of each window.


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


def balance_windows(
    learned: LearnedModels, queues: Collection[str]
) -> dict[str, list[BalanceWindow]]:
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
        table=ReportTable(
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
            label_inside(
                axes,
                state,
                (float(left + right) / 2, foot + 1.6 * height),
                colour=STABILITIES[state],
                align="center",
                across=True,
            )
        run_begins += length


# The section on the phases of a request (table 5.3 of the Telesto paper), with 95 % intervals.


_COLOURS: dict[str, Colour] = {
    "wait_client": GREY,
    "parse": AMBER,
    "store": BLUE,
    "wait_message": PALE,
    "respond": BRICK,
}
_PHASE_NAMES = {
    "wait_client": "waiting for client",
    "parse": "parsing",
    "store": "store",
    "wait_message": "waiting for a message",
    "respond": "responding",
}
_ORDER = {phase: place for place, phase in enumerate(_PHASE_NAMES)}
_ON_LABEL_FROM = 0.12


_PHASE_COLUMNS = ("verb", "phase", "requests", "mean_us", "low_us", "high_us", "share")
_IDLE_COLUMNS = ("node", "seconds", "idle", "idle_low", "idle_high")
# The verb under which the job sums all verbs.
_ALL = "all"
# The number of verbs drawn besides the sum; the table has all of them.
_VERBS_MAX = 6
_NAME_MAX = 22
_INCHES_PER_LETTER = 0.08
_KEY_COLUMNS = 3


@dataclass(frozen=True)
class RequestPhase:
    """One phase of the requests of one verb."""

    verb: str
    phase: str
    requests: float
    mean_us: float
    # `None` for a single request, which has no interval.
    low_us: float | None
    high_us: float | None
    share: float


def phases_section(learned: LearnedModels) -> ReportSection:
    """Return where requests spend their time, and how idle the nodes were."""
    title = "Phases of a request"
    phases = [
        RequestPhase(**row)
        for row in learned.rows("phases", _PHASE_COLUMNS)
        if row["share"] is not None and row["share"] == row["share"]
    ]
    idle = _idle_table(learned)
    if not phases:
        return ReportSection(
            "phases",
            title,
            tables=[idle] if idle else [],
            missing="No request was sampled: nodes sample those of clients that ask one thing at "
            "a time. Let some work, then run `tidegate learn`.",
        )
    phases.sort(key=lambda phase: (_ORDER.get(phase.phase, len(_ORDER)), phase.phase))
    verbs = _verbs(phases)
    return ReportSection(
        "phases",
        title,
        charts=[phase_chart(phases, verbs)],
        tables=[idle] if idle else [],
    )


def _verbs(phases: Sequence[RequestPhase]) -> list[str]:
    """Return the verbs: the sum of all first, then the most frequent."""
    requests = {phase.verb: phase.requests for phase in phases}
    return sorted(requests, key=lambda verb: (verb != _ALL, -requests[verb], verb))


def _idle_table(learned: LearnedModels) -> ReportTable | None:
    rows = learned.rows("idleness", _IDLE_COLUMNS, order=("node",))
    if not rows:
        return None
    return ReportTable(
        "How much of the time each node had nothing to do, with the 95 % interval.",
        ("node", "idle", "95 % interval", "seen for"),
        [
            (
                row["node"],
                percent(row["idle"]),
                f"{percent(row['idle_low'])} to {percent(row['idle_high'])}",
                duration(row["seconds"]),
            )
            for row in rows
        ],
    )


def words_of(phase: str) -> str:
    """Return the name of a phase in prose."""
    return _PHASE_NAMES.get(phase, phase.replace("_", " "))


def phase_chart(phases: Sequence[RequestPhase], verbs: Sequence[str]) -> Chart:
    """Return a bar for each verb, divided into phases; `phases` must not be empty."""
    longest = max(
        (phase for phase in phases if phase.verb == verbs[0]), key=lambda phase: phase.share
    )
    drawn = verbs[: _VERBS_MAX + (verbs[0] == _ALL)]
    names = [_short(escape_control_characters(verb)) for verb in drawn]
    ticks_in = max(0.66, 0.14 + _INCHES_PER_LETTER * max(map(len, names)))
    left_out = len(verbs) - len(drawn)
    of = "the time of all requests" if longest.verb == _ALL else f"a {longest.verb}"

    def draw(axes: Axes) -> None:
        axes.grid(visible=False)
        axes.spines["bottom"].set_visible(False)
        for row, verb in enumerate(reversed(drawn)):
            left = 0.0
            for phase in (one for one in phases if one.verb == verb):
                colour = _COLOURS.get(phase.phase, VIOLET)
                axes.barh(
                    row,
                    phase.share,
                    left=left,
                    height=0.62,
                    color=colour.light,
                    edgecolor=PAGE.light,
                    linewidth=0.8,
                )
                if phase.share >= _ON_LABEL_FROM:
                    axes.text(
                        left + phase.share / 2,
                        row,
                        f"{words_of(phase.phase)} {percent(phase.share)}"
                        if phase.share >= 0.42
                        else percent(phase.share),
                        ha="center",
                        va="center",
                        fontsize=SMALL,
                        color=(INK if colour is PALE else PAGE).light,
                    )
                left += phase.share
        axes.set_yticks(range(len(drawn)), names[::-1])
        axes.set_ylim(-0.6, len(drawn) - 0.4)
        axes.set_xlim(0.0, 1.0)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: percent(value)))
        axes.tick_params(axis="x", length=0)
        axes.tick_params(axis="y", labelcolor=SOFT.light)
        _draw_key(axes, list(dict.fromkeys(phase.phase for phase in phases)), ticks_in)

    return Chart(
        title="Where the time of a request goes",
        sentence=(
            f"{percent(longest.share)} of {of} is {words_of(longest.phase)}: "
            f"{duration(longest.mean_us / 1e6)} of "
            f"{duration(longest.mean_us / longest.share / 1e6)} on average."
            + (f" {_not_drawn(left_out)} in the numbers below." if left_out else "")
        ),
        measures="share of the time, by request",
        draw=draw,
        label_in=0.25,
        ticks_in=ticks_in,
        foot_in=0.4,
        height_in=1.2 + 0.4 * len(drawn),
        table=phase_table(phases, verbs),
    )


def _short(name: str) -> str:
    return name if len(name) <= _NAME_MAX else f"{name[: _NAME_MAX - 1]}…"


def _not_drawn(left_out: int) -> str:
    return f"{counted(left_out, 'rarer request')} {'is' if left_out == 1 else 'are'}"


def _draw_key(axes: Axes, phases: Sequence[str], ticks_in: float) -> None:
    """Draw the key of colours in rows below the bars."""
    for row in range(0, len(phases), _KEY_COLUMNS):
        for column, phase in enumerate(phases[row : row + _KEY_COLUMNS]):
            x_points, y_points = (
                128.0 * column - (72.0 * ticks_in - 11.0),
                -30.0 - 13.0 * row / _KEY_COLUMNS,
            )
            for words, offset_points, colour in (
                ("■", x_points, _COLOURS.get(phase, VIOLET)),
                (escape_control_characters(words_of(phase)), x_points + 11.0, SOFT),
            ):
                axes.annotate(
                    words,
                    (0.0, 0.0),
                    xycoords="axes fraction",
                    xytext=(offset_points, y_points),
                    textcoords="offset points",
                    va="center",
                    fontsize=SMALL,
                    color=colour.light,
                    annotation_clip=False,
                )


def phase_table(phases: Sequence[RequestPhase], verbs: Sequence[str]) -> ReportTable:
    """Return a table of every phase with its interval."""
    return ReportTable(
        "Mean time of each phase, with the 95 % interval of the mean.",
        ("request", "phase", "mean", "95 % interval", "share", "requests"),
        [
            (
                phase.verb,
                words_of(phase.phase),
                _time(phase.mean_us),
                f"{_time(phase.low_us)} to {_time(phase.high_us)}",
                percent(phase.share),
                count(phase.requests),
            )
            for verb in verbs
            for phase in phases
            if phase.verb == verb
        ],
    )


def _time(time_us: float | None) -> str:
    return duration(None if time_us is None else time_us / 1e6)
