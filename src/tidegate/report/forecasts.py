"""What will arrive within the next hour: expected rates, their interval, and the baseline."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from matplotlib.axes import Axes
from matplotlib.dates import date2num

from tidegate.report.axes import name_line_ends, number_axis, time_axis
from tidegate.report.chart import Chart, Table
from tidegate.report.figures import clock, number, percent, rate
from tidegate.report.learned import Learned
from tidegate.report.palette import BLUE, GREY, VIOLET
from tidegate.report.series import ROWS_MAX


@dataclass(frozen=True)
class Past:
    """What had arrived."""

    at: datetime
    arrived_per_s: float


@dataclass(frozen=True)
class Ahead:
    """What is expected of one step."""

    at: datetime
    expected_per_s: float
    low_per_s: float
    high_per_s: float
    baseline_per_s: float | None


@dataclass(frozen=True)
class Judged:
    """How good the forecast was on what it had not seen."""

    accepted: bool
    reason: str
    skill: float
    coverage: float
    confidence: float


def forecast_charts(learned: Learned, queues: Collection[str]) -> dict[str, Chart]:
    """A chart for each of some queues that has a forecast."""
    return {}


def forecast_chart(past: Sequence[Past], ahead: Sequence[Ahead], judged: Judged) -> Chart:
    """The last of what came, and what is expected; `ahead` must not be none."""
    mean = sum(step.expected_per_s for step in ahead) / len(ahead)
    low, high = min(step.low_per_s for step in ahead), max(step.high_per_s for step in ahead)

    def draw(axes: Axes) -> None:
        at = date2num([step.at for step in ahead])
        expected = [step.expected_per_s for step in ahead]
        before = date2num([one.at for one in past])
        arrived = [one.arrived_per_s for one in past]
        lows, highs = [s.low_per_s for s in ahead], [s.high_per_s for s in ahead]
        axes.fill_between(at, lows, highs, color=VIOLET.light, alpha=0.22, linewidth=0)
        axes.plot(before, arrived, color=BLUE.light, linewidth=1.3)
        ends = [(expected[-1], "expected", VIOLET)]
        baseline = [s.baseline_per_s for s in ahead if s.baseline_per_s is not None]
        if len(baseline) == len(ahead):
            axes.plot(at, baseline, color=GREY.light, linewidth=1.1, linestyle=(0, (2, 2)))
            ends.append((baseline[-1], "baseline", GREY))
        axes.plot(at, expected, color=VIOLET.light)
        time_axis(axes)
        number_axis(axes, max([*arrived, *highs]))
        name_line_ends(axes, ends)

    better = "better" if judged.skill >= 0 else "worse"
    sentence = (
        f"{rate(mean)} expected on average until {clock(ahead[-1].at)} UTC, between {number(low)} "
        f"and {rate(high)} with {percent(judged.confidence)} confidence. On held-out data it was "
        f"{percent(abs(judged.skill))} {better} than the baseline, and {percent(judged.coverage)} "
        "of what came lay within its interval."
    )
    if not judged.accepted:
        sentence += f" Not accepted: {judged.reason}"
    every = -(-len(ahead) // ROWS_MAX)
    return Chart(
        title="Forecast",
        sentence=sentence,
        measures="arrivals, msg/s",
        draw=draw,
        label_in=0.8,
        table=Table(
            "Expected arrivals.",
            ("at (UTC)", "expected", "low", "high", "baseline"),
            [
                (
                    clock(step.at),
                    rate(step.expected_per_s),
                    rate(step.low_per_s),
                    rate(step.high_per_s),
                    rate(step.baseline_per_s),
                )
                for step in ahead[::every]
            ],
            rows_in_all=len(ahead),
        ),
    )
