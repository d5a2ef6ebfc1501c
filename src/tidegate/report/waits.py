"""Chart of how long messages waited: median, p95 and p99 over time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median_low

from matplotlib.axes import Axes

from tidegate.agreement.document import Agreement
from tidegate.report.chart import Chart, Table
from tidegate.report.figures import clock, count, counted, duration
from tidegate.report.glance import promise
from tidegate.report.learned import Learned, grouped
from tidegate.report.percentile_lines import Limit, draw_percentiles
from tidegate.report.series import POINTS_MAX, rows_behind, shortened

_MUCH_LONGER = 2.0
_COLUMNS = ("queue", "window", "window_s", "messages", "wait_s_p50", "wait_s_p95", "wait_s_p99")


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


def wait_windows(learned: Learned, queues: Collection[str]) -> dict[str, list[WaitWindow]]:
    """Return the windows of some queues, oldest first."""
    rows = learned.rows("lifecycle", _COLUMNS, ("queue", queues), ("queue", "window"))
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
        (metric.breach, f"{agreement.name}: {promise(metric)}")
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

    limits = [Limit(limit.words, limit.breach_s)] if limit else []

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
        table=Table(
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
