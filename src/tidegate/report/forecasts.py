"""Chart of the arrivals in the next hour: expected rates, their bounds, and the baseline."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from matplotlib.axes import Axes

from tidegate.report.axes import days, mark_of, name_line_ends, number_axis, time_axis
from tidegate.report.chart import Chart, Table
from tidegate.report.figures import clock, number, percent, rate
from tidegate.report.figures import sentence as ended
from tidegate.report.learned import Learned, Row, grouped
from tidegate.report.palette import BLUE, GREY, VIOLET
from tidegate.report.series import POINTS_MAX, ROWS_MAX, shortened
from tidegate.telemetry.knowledge import Model

# Steps of the past that are drawn for each step of the future.
_PAST_STEPS = 6

_COLUMNS = ("queue", "at", "expected_per_s", "low_per_s", "high_per_s", "baseline_per_s")
_PAST_COLUMNS = ("queue", "at", "arrived_per_s")


@dataclass(frozen=True)
class Past:
    """The arrival rate of one step of the past."""

    at: datetime
    arrived_per_s: float


@dataclass(frozen=True)
class Ahead:
    """The expected rate of one step; the bounds are `None` if the errors are not known."""

    at: datetime
    expected_per_s: float
    low_per_s: float | None
    high_per_s: float | None
    baseline_per_s: float


def forecasts(learned: Learned, queues: Collection[str]) -> tuple[dict[str, Chart], dict[str, str]]:
    """Return by queue a chart of its forecast, or a sentence that says why there is none yet."""
    only = ("queue", queues)
    ahead = grouped(learned.rows("forecast", _COLUMNS, only, ("queue", "at")), "queue")
    past = grouped(learned.rows("forecast_history", _PAST_COLUMNS, only, ("queue", "at")), "queue")
    models = learned.models("forecast")
    charts, refusals = dict[str, Chart](), dict[str, str]()
    for queue, rows in ahead.items():
        steps, model = [_ahead(row) for row in rows], models.get(queue)
        if model is not None and is_unknown(steps, model):
            refusals[queue] = ended(f"No forecast yet: {model.reason}")
            continue
        arrived = [Past(row["at"], row["arrived_per_s"]) for row in past.get(queue, [])]
        charts[queue] = forecast_chart(arrived, steps, model)
    return charts, refusals


def is_unknown(ahead: Sequence[Ahead], model: Model) -> bool:
    """Return whether the forecast is only the last value, repeated.

    If a refused forecast could be evaluated, the baseline with its own bounds takes its place.
    """
    return not model.accepted and all(step.high_per_s is None for step in ahead)


def _ahead(row: Row) -> Ahead:
    return Ahead(
        at=row["at"],
        expected_per_s=row["expected_per_s"],
        low_per_s=_known(row["low_per_s"]),
        high_per_s=_known(row["high_per_s"]),
        baseline_per_s=row["baseline_per_s"],
    )


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _mean(steps: Sequence[Past]) -> Past:
    return Past(steps[0].at, sum(step.arrived_per_s for step in steps) / len(steps))


def forecast_chart(past: Sequence[Past], ahead: Sequence[Ahead], model: Model | None) -> Chart:
    """Return the latest arrivals and the expected ones; `ahead` must not be empty."""
    recent = shortened(past[-_PAST_STEPS * len(ahead) :], _mean, POINTS_MAX)
    accepted = model is not None and model.accepted

    def draw(axes: Axes) -> None:
        at = days([step.at for step in ahead])
        expected = [step.expected_per_s for step in ahead]
        before = days([one.at for one in recent])
        arrived = [one.arrived_per_s for one in recent]
        lows = [step.low_per_s for step in ahead if step.low_per_s is not None]
        highs = [step.high_per_s for step in ahead if step.high_per_s is not None]
        if len(lows) == len(highs) == len(ahead):
            axes.fill_between(at, lows, highs, color=VIOLET.light, alpha=0.22, linewidth=0)
        axes.plot(before, arrived, marker=mark_of(before), color=BLUE.light, linewidth=1.3)
        ends = [(expected[-1], "expected", VIOLET)]
        if accepted:
            baseline = [step.baseline_per_s for step in ahead]
            axes.plot(at, baseline, color=GREY.light, linewidth=1.1, linestyle=(0, (2, 2)))
            ends.append((baseline[-1], "baseline", GREY))
        axes.plot(at, expected, color=VIOLET.light)
        time_axis(axes)
        number_axis(axes, max([*arrived, *expected, *highs]))
        name_line_ends(axes, ends)

    every = -(-len(ahead) // ROWS_MAX)
    return Chart(
        title="Forecast",
        sentence=_sentence(ahead, model),
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


def _sentence(ahead: Sequence[Ahead], model: Model | None) -> str:
    mean = sum(step.expected_per_s for step in ahead) / len(ahead)
    lows = [step.low_per_s for step in ahead if step.low_per_s is not None]
    highs = [step.high_per_s for step in ahead if step.high_per_s is not None]
    between = f", from {number(min(lows))} to {rate(max(highs))}" if lows and highs else ""
    # The time of a step is its beginning.
    step = ahead[1].at - ahead[0].at if len(ahead) > 1 else timedelta(0)
    until = clock(ahead[-1].at + step)
    said = f"{rate(mean)} expected on average until {until} UTC{between}."
    if model is None:
        return said
    if not model.accepted:
        return ended(f"{said} That is the baseline: {model.reason}")
    skill, coverage = model.quality.get("skill"), model.quality.get("coverage")
    return (
        f"{said} On held-out hours it erred {percent(skill)} less than the baseline, and "
        f"{percent(coverage)} of what came lay within its bounds."
    )
