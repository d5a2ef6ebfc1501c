"""Chart of throughput against the number of clients, with the fitted curve and C.

C is the number of clients that a queue serves best.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tidegate.laws.capacity import KNEE_FRACTION, ScalabilityCurve
from tidegate.report.charts import (
    AMBER,
    AXIS,
    BLUE,
    GREY,
    PAGE,
    POINTS_MAX,
    ROWS_MAX,
    VIOLET,
    Chart,
    ReportTable,
    clock,
    count,
    counted,
    days,
    duration,
    label_inside,
    limit_line,
    mark_of,
    name_line_ends,
    number,
    number_axis,
    percent,
    rate,
    shortened,
    time_axis,
)
from tidegate.report.charts import sentence as ended
from tidegate.telemetry.learned import LearnedModels, Row, grouped
from tidegate.telemetry.models import StoredModel

_CURVE_POINTS = 80


@dataclass(frozen=True)
class MeasuredPoint:
    """What a queue did while it had this number of producers and consumers."""

    producers: int
    consumers: int
    throughput_per_s: float
    seconds: float
    # Whether the consumption rate matched the production rate.
    stable: bool = True

    @property
    def clients(self) -> int:
        return self.producers + self.consumers


@dataclass(frozen=True)
class FittedCapacity:
    """C with its mix of clients, or the reason why there is none, and the fitted curve."""

    accepted: bool
    reason: str
    # 0 and NaN if there was too little data.
    clients: int
    throughput_per_s: float
    best_producers: int
    best_consumers: int
    curve: ScalabilityCurve | None


def operating_points(
    learned: LearnedModels, queues: Collection[str]
) -> dict[str, list[MeasuredPoint]]:
    """Return the measured points of some queues."""
    columns = ("queue", "producers", "consumers", "throughput_per_s", "seconds", "stable")
    rows = learned.rows("capacity", columns, ("queue", queues), ("queue", "producers", "consumers"))
    return {
        queue: [
            MeasuredPoint(
                producers=row["producers"],
                consumers=row["consumers"],
                throughput_per_s=row["throughput_per_s"],
                seconds=row["seconds"],
                stable=row["stable"],
            )
            for row in points
        ]
        for queue, points in grouped(rows, "queue").items()
    }


def fitted_from(model: StoredModel | None) -> FittedCapacity | None:
    """Return the fitted capacity from a stored model, or `None` without a model."""
    if model is None:
        return None
    known = model.parameters
    curve = None
    if {"rate_per_s", "contention", "coherency"} <= known.keys():
        curve = ScalabilityCurve(
            rate_per_s=known["rate_per_s"],
            contention=known["contention"],
            coherency=known["coherency"],
            r2=model.quality.get("r2", math.nan),
        )
    return FittedCapacity(
        accepted=model.accepted,
        reason=model.reason,
        clients=int(known.get("clients", 0)),
        throughput_per_s=known.get("throughput_per_s", math.nan),
        best_producers=int(known.get("best_producers", 0)),
        best_consumers=int(known.get("best_consumers", 0)),
        curve=curve,
    )


def capacity_chart(seen: Sequence[MeasuredPoint], fitted: FittedCapacity | None) -> Chart:
    """Return the measured points, the curve through them, and C; `seen` must not be empty."""
    most_clients = max(one.clients for one in seen)
    best = max(seen, key=lambda one: one.throughput_per_s)
    longest_s = max(one.seconds for one in seen)

    def draw(axes: Axes) -> None:
        highest = best.throughput_per_s
        if fitted and fitted.curve:
            steps = [
                1 + (most_clients - 1) * step / _CURVE_POINTS for step in range(_CURVE_POINTS + 1)
            ]
            curve = [fitted.curve.throughput_per_s(step) for step in steps]
            axes.plot(steps, curve, color=AMBER.light, zorder=3)
            highest = max(highest, *curve)
        for stable in (False, True):
            points = [one for one in seen if one.stable is stable]
            # The area shows how long the mix was measured; a ring means that it was never stable.
            axes.scatter(
                [one.clients for one in points],
                [one.throughput_per_s for one in points],
                s=[14 + 60 * one.seconds / longest_s for one in points],
                facecolor=BLUE.light if stable else "none",
                alpha=0.7,
                edgecolor=(PAGE if stable else BLUE).light,
                linewidth=0.6 if stable else 0.9,
                zorder=2,
            )
        number_axis(axes, highest * 1.16)
        axes.set_xlim(0, most_clients * 1.06 + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if fitted and fitted.accepted:
            _mark_capacity(axes, fitted, most_clients)

    if fitted and fitted.accepted:
        fit = (
            f" The curve explains {percent(fitted.curve.r2)} of the variance."
            if fitted.curve
            else ""
        )
        sentence = (
            f"{counted(fitted.clients, 'client')} reach {percent(KNEE_FRACTION)} of the plateau of "
            f"{rate(fitted.throughput_per_s)}; the best mix is "
            f"{counted(fitted.best_producers, 'producer')} and "
            f"{counted(fitted.best_consumers, 'consumer')}.{fit}"
        )
    else:
        why = f": {fitted.reason}" if fitted else ""
        sentence = (
            f"The most seen is {rate(best.throughput_per_s)} with "
            f"{counted(best.clients, 'client')}. " + ended(f"No capacity was accepted{why}")
        )
    ordered = sorted(seen, key=lambda one: -one.seconds)[:ROWS_MAX]
    return Chart(
        title="Throughput against clients",
        sentence=sentence,
        measures="msg/s, by number of clients",
        draw=draw,
        table=ReportTable(
            "What the queue did with so many clients, longest seen first.",
            ("producers", "consumers", "throughput", "seen for", "stable"),
            [
                (
                    count(one.producers),
                    count(one.consumers),
                    rate(one.throughput_per_s),
                    duration(one.seconds),
                    "yes" if one.stable else "no",
                )
                for one in ordered
            ],
            rows_in_all=len(seen),
        ),
    )


def _mark_capacity(axes: Axes, fitted: FittedCapacity, most_clients: int) -> None:
    """Draw C on the curve, and the plateau."""
    reached = KNEE_FRACTION * fitted.throughput_per_s
    height = fitted.curve.throughput_per_s(fitted.clients) if fitted.curve else reached
    limit_line(axes, fitted.throughput_per_s, f"plateau {rate(fitted.throughput_per_s)}")
    axes.plot([fitted.clients] * 2, [0, height], color=AXIS.light, linewidth=1.0)
    axes.plot(
        [fitted.clients],
        [height],
        "o",
        color=AMBER.light,
        markersize=7,
        markeredgecolor=PAGE.light,
        zorder=5,
    )
    is_right = fitted.clients > 0.7 * most_clients
    label_inside(
        axes,
        f"C = {counted(fitted.clients, 'client')}",
        (fitted.clients, height),
        (-6.0 if is_right else 7.0, -13.0),
        align="right" if is_right else "left",
        bold=True,
    )


# Chart of the arrivals in the next hour: expected rates, their bounds, and the baseline.


# Steps of the past that are drawn for each step of the future.
_PAST_STEPS = 6

_COLUMNS = ("queue", "at", "expected_per_s", "low_per_s", "high_per_s", "baseline_per_s")
_PAST_COLUMNS = ("queue", "at", "arrived_per_s")


@dataclass(frozen=True)
class PastArrivals:
    """The arrival rate of one step of the past."""

    at: datetime
    arrived_per_s: float


@dataclass(frozen=True)
class ForecastStep:
    """The expected rate of one step; the bounds are `None` if the errors are not known."""

    at: datetime
    expected_per_s: float
    low_per_s: float | None
    high_per_s: float | None
    baseline_per_s: float


def forecasts(
    learned: LearnedModels, queues: Collection[str]
) -> tuple[dict[str, Chart], dict[str, str]]:
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
        arrived = [PastArrivals(row["at"], row["arrived_per_s"]) for row in past.get(queue, [])]
        charts[queue] = forecast_chart(arrived, steps, model)
    return charts, refusals


def is_unknown(ahead: Sequence[ForecastStep], model: StoredModel) -> bool:
    """Return whether the forecast is only the last value, repeated.

    If a refused forecast could be evaluated, the baseline with its own bounds takes its place.
    """
    return not model.accepted and all(step.high_per_s is None for step in ahead)


def _ahead(row: Row) -> ForecastStep:
    return ForecastStep(
        at=row["at"],
        expected_per_s=row["expected_per_s"],
        low_per_s=_known(row["low_per_s"]),
        high_per_s=_known(row["high_per_s"]),
        baseline_per_s=row["baseline_per_s"],
    )


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _mean(steps: Sequence[PastArrivals]) -> PastArrivals:
    return PastArrivals(steps[0].at, sum(step.arrived_per_s for step in steps) / len(steps))


def forecast_chart(
    past: Sequence[PastArrivals], ahead: Sequence[ForecastStep], model: StoredModel | None
) -> Chart:
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
        table=ReportTable(
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


def _sentence(ahead: Sequence[ForecastStep], model: StoredModel | None) -> str:
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
