"""How many clients a queue serves best: throughput against clients, and the curve fitted to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tidegate.report.axes import number_axis, say
from tidegate.report.chart import Chart, Table
from tidegate.report.figures import count, counted, duration, number, percent, rate
from tidegate.report.palette import AMBER, AXIS, BLUE, PAGE
from tidegate.report.series import ROWS_MAX

_CURVE_POINTS = 80


@dataclass(frozen=True)
class Operating:
    """What the queue did while so many clients were on it."""

    producers: int
    consumers: int
    throughput_per_s: float
    seconds: float

    @property
    def clients(self) -> int:
        return self.producers + self.consumers


@dataclass(frozen=True)
class Fitted:
    """C with its mix, and the curve X(n) = rate·n / (1 + contention·(n−1) + coherency·n·(n−1))."""

    accepted: bool
    reason: str
    clients: int
    throughput_per_s: float
    best_producers: int
    best_consumers: int
    # None: no curve could be fitted.
    curve: tuple[float, float, float] | None
    r2: float

    def at(self, clients: float) -> float:
        """The curve's throughput."""
        assert self.curve is not None
        rate_per_s, contention, coherency = self.curve
        return (
            rate_per_s
            * clients
            / (1 + contention * (clients - 1) + coherency * clients * (clients - 1))
        )


def capacity_chart(seen: Sequence[Operating], fitted: Fitted | None) -> Chart:
    """What was measured as dots, the curve through them, and C; `seen` must not be none."""
    most_clients = max(one.clients for one in seen)
    best = max(seen, key=lambda one: one.throughput_per_s)
    longest_s = max(one.seconds for one in seen)

    def draw(axes: Axes) -> None:
        highest = best.throughput_per_s
        if fitted and fitted.curve:
            steps = [
                1 + (most_clients - 1) * step / _CURVE_POINTS for step in range(_CURVE_POINTS + 1)
            ]
            curve = [fitted.at(step) for step in steps]
            axes.plot(steps, curve, color=AMBER.light, zorder=3)
            highest = max(highest, *curve)
        # The area tells how long it was seen.
        axes.scatter(
            [one.clients for one in seen],
            [one.throughput_per_s for one in seen],
            s=[12 + 60 * one.seconds / longest_s for one in seen],
            color=BLUE.light,
            alpha=0.65,
            edgecolor=PAGE.light,
            linewidth=0.6,
            zorder=2,
        )
        number_axis(axes, highest * 1.16)
        axes.set_xlim(0, most_clients * 1.06 + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if fitted and fitted.accepted:
            axes.plot(
                [fitted.clients] * 2, [0, fitted.throughput_per_s], color=AXIS.light, linewidth=1.0
            )
            axes.plot(
                [fitted.clients], [fitted.throughput_per_s], "o", color=AMBER.light,
                markersize=7, markeredgecolor=PAGE.light, zorder=5,
            )
            right = fitted.clients > 0.55 * most_clients
            say(
                axes,
                f"C = {counted(fitted.clients, 'client')}, {rate(fitted.throughput_per_s)}",
                (fitted.clients, fitted.throughput_per_s),
                (-4.0 if right else 4.0, 14.0),
                align="right" if right else "left",
                bold=True,
            )

    if fitted and fitted.accepted:
        fit = f" The curve explains {percent(fitted.r2)} of the variance." if fitted.curve else ""
        sentence = (
            f"{counted(fitted.clients, 'client')} reach {rate(fitted.throughput_per_s)}, best as "
            f"{counted(fitted.best_producers, 'producer')} and "
            f"{counted(fitted.best_consumers, 'consumer')}.{fit}"
        )
    else:
        why = f": {fitted.reason}" if fitted else "."
        sentence = (
            f"The most seen is {rate(best.throughput_per_s)} with "
            f"{counted(best.clients, 'client')}. No capacity was accepted{why}"
        )
    ordered = sorted(seen, key=lambda one: -one.seconds)[:ROWS_MAX]
    return Chart(
        title="Throughput against clients",
        sentence=sentence,
        measures="msg/s, by number of clients",
        draw=draw,
        table=Table(
            "What the queue did with so many clients, longest seen first.",
            ("producers", "consumers", "throughput", "seen for"),
            [
                (
                    count(one.producers),
                    count(one.consumers),
                    rate(one.throughput_per_s),
                    duration(one.seconds),
                )
                for one in ordered
            ],
            rows_in_all=len(seen),
        ),
    )


def ratio(producers: int, consumers: int) -> str:
    """A mix as one producer for so many consumers."""
    return f"1 : {number(consumers / producers)}" if producers else "–"
