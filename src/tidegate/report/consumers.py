"""The identified model of a consumer group over its data: how prefetch drives its rate.

The line is where the model y(k+1) = a·y(k) + b·u(k) + offset comes to rest at each prefetch:
y∞ = (b·u + offset) / (1 − a), drawn over the range in which it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tidegate.report.axes import number_axis, say
from tidegate.report.chart import Chart, Table
from tidegate.report.figures import count, number, percent, rate
from tidegate.report.palette import AMBER, BLUE, GREY, SOFT
from tidegate.report.series import slices

_LEVELS_MAX = 60


@dataclass(frozen=True)
class PrefetchLevel:
    """What was measured at one prefetch."""

    prefetch: float
    samples: int
    mean_per_s: float
    deviation_per_s: float


@dataclass(frozen=True)
class ConsumerModel:
    """What was identified, or why it was refused."""

    group: str
    accepted: bool
    reason: str
    a: float
    b: float
    offset_per_s: float
    low: float
    high: float
    r2_test: float
    rmse_test_per_s: float

    def resting_per_s(self, prefetch: float) -> float:
        """The rate at which the model comes to rest."""
        return (self.b * prefetch + self.offset_per_s) / (1.0 - self.a)

    @property
    def drawable(self) -> bool:
        """Whether it has a line: fitted, and coming to rest at all."""
        return self.b == self.b and self.a < 1.0 and self.low < self.high

    @property
    def formula(self) -> str:
        """The model with its numbers."""
        return f"y(k+1) = {number(self.a)} y(k) + {number(self.b)} u(k)"


def model_chart(model: ConsumerModel, levels: Sequence[PrefetchLevel]) -> Chart:
    """Means and spread at each prefetch with the model's line; `levels` must not be none."""
    shown = [part[0] for part in slices(levels, _LEVELS_MAX)]

    def draw(axes: Axes) -> None:
        u = [level.prefetch for level in shown]
        mean = [level.mean_per_s for level in shown]
        spread = [level.deviation_per_s for level in shown]
        inside = [model.low <= one <= model.high for one in u]
        axes.vlines(
            u,
            [max(m - s, 0.0) for m, s in zip(mean, spread, strict=True)],
            [m + s for m, s in zip(mean, spread, strict=True)],
            color=BLUE.light,
            alpha=0.35,
            linewidth=1.6,
        )
        for within, colour in ((True, BLUE), (False, GREY)):
            axes.plot(
                [x for x, one in zip(u, inside, strict=True) if one is within],
                [y for y, one in zip(mean, inside, strict=True) if one is within],
                "o",
                color=colour.light,
                markersize=4.2,
            )
        highest = max(m + s for m, s in zip(mean, spread, strict=True))
        number_axis(axes, highest * 1.12)
        axes.set_xlim(min(0.0, *u), max(u) * 1.05 + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if model.drawable:
            ends = [model.low, model.high]
            axes.plot(
                ends,
                [model.resting_per_s(end) for end in ends],
                color=AMBER.light,
                linewidth=2.0,
                linestyle="-" if model.accepted else (0, (4, 3)),
                zorder=4,
            )
            if model.high < max(u):
                axes.axvline(model.high, color=SOFT.light, linewidth=0.9, linestyle=(0, (2, 2)))
                say(
                    axes,
                    f"linear up to {number(model.high)}",
                    (model.high, 0.0),
                    (4.0, 9.0),
                    colour=SOFT,
                )

    if model.accepted:
        sentence = (
            f"{model.formula}: one more message of prefetch is worth "
            f"{rate(model.b / (1.0 - model.a))}. Of held-out data it explains "
            f"{percent(model.r2_test)}, off by {rate(model.rmse_test_per_s)} (RMSE)."
        )
    else:
        sentence = f"Refused: {model.reason}"
    return Chart(
        title=model.group,
        sentence=sentence,
        measures="arrivals, msg/s, by prefetch",
        draw=draw,
        table=Table(
            "Arrival rate at each prefetch: mean and standard deviation.",
            ("prefetch", "samples", "mean", "deviation"),
            [
                (
                    number(level.prefetch),
                    count(level.samples),
                    rate(level.mean_per_s),
                    rate(level.deviation_per_s),
                )
                for level in shown
            ],
            rows_in_all=len(levels),
        ),
    )
