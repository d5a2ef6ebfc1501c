"""Chart of throughput against the number of clients, with the fitted curve and C.

C is the number of clients that a queue serves best.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tidegate.laws.capacity import KNEE_FRACTION
from tidegate.laws.scalability import Curve
from tidegate.report.axes import limit_line, number_axis, say
from tidegate.report.chart import Chart, Table
from tidegate.report.figures import count, counted, duration, percent, rate
from tidegate.report.figures import sentence as ended
from tidegate.report.learned import Learned, grouped
from tidegate.report.palette import AMBER, AXIS, BLUE, PAGE
from tidegate.report.series import ROWS_MAX
from tidegate.telemetry.knowledge import Model

_CURVE_POINTS = 80


@dataclass(frozen=True)
class Operating:
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
class Fitted:
    """C with its mix of clients, or the reason why there is none, and the fitted curve."""

    accepted: bool
    reason: str
    # 0 and NaN if there was too little data.
    clients: int
    throughput_per_s: float
    best_producers: int
    best_consumers: int
    curve: Curve | None


def operating_points(learned: Learned, queues: Collection[str]) -> dict[str, list[Operating]]:
    """Return the measured points of some queues."""
    columns = ("queue", "producers", "consumers", "throughput_per_s", "seconds", "stable")
    rows = learned.rows("capacity", columns, ("queue", queues), ("queue", "producers", "consumers"))
    return {
        queue: [
            Operating(
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


def fitted_from(model: Model | None) -> Fitted | None:
    """Return the fitted capacity from a stored model, or `None` without a model."""
    if model is None:
        return None
    known = model.parameters
    curve = None
    if {"rate_per_s", "contention", "coherency"} <= known.keys():
        curve = Curve(
            rate_per_s=known["rate_per_s"],
            contention=known["contention"],
            coherency=known["coherency"],
            r2=model.quality.get("r2", math.nan),
        )
    return Fitted(
        accepted=model.accepted,
        reason=model.reason,
        clients=int(known.get("clients", 0)),
        throughput_per_s=known.get("throughput_per_s", math.nan),
        best_producers=int(known.get("best_producers", 0)),
        best_consumers=int(known.get("best_consumers", 0)),
        curve=curve,
    )


def capacity_chart(seen: Sequence[Operating], fitted: Fitted | None) -> Chart:
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
        table=Table(
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


def _mark_capacity(axes: Axes, fitted: Fitted, most_clients: int) -> None:
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
    say(
        axes,
        f"C = {counted(fitted.clients, 'client')}",
        (fitted.clients, height),
        (-6.0 if is_right else 7.0, -13.0),
        align="right" if is_right else "left",
        bold=True,
    )
