"""Charts of identified consumer groups: how prefetch affects the arrival rate.

The model is y(k+1) = a·y(k) + b·u(k) + offset. The line shows the rate at which it settles at each
prefetch, within its linear range. `learn` has computed it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tidegate.report.axes import number_axis, say
from tidegate.report.chart import Chart, Section, Table
from tidegate.report.figures import count, counted, number, percent, rate
from tidegate.report.figures import sentence as ended
from tidegate.report.learned import Learned, Row, grouped
from tidegate.report.palette import AMBER, BLUE, GREY, SOFT
from tidegate.report.series import slices

_LEVELS_MAX = 60


# The number of charts; the section on models lists all groups.
GROUPS_MAX = 6

_MODEL_COLUMNS = (
    *("group", "accepted", "reason", "a", "b", "offset_per_s", "prefetch_low", "prefetch_high"),
    *("r2_test", "rmse_test_per_s", "rows_train", "rows_test"),
)
_LEVEL_COLUMNS = (
    *("group", "prefetch", "rows", "arrival_per_s", "arrival_per_s_stddev"),
    *("settled_per_s", "in_linear_range"),
)


@dataclass(frozen=True)
class PrefetchLevel:
    """The measured rate at one prefetch, and the rate that the model predicts."""

    prefetch: float
    samples: int
    mean_per_s: float
    deviation_per_s: float
    # `None` if the model does not settle.
    settled_per_s: float | None
    in_linear_range: bool


@dataclass(frozen=True)
class ConsumerModel:
    """An identified model, or the reason for its refusal."""

    group: str
    accepted: bool
    reason: str
    a: float
    b: float
    # The constant term: the model describes deviations from an operating point.
    offset_per_s: float
    high: float
    r2_test: float
    rmse_test_per_s: float
    samples: int

    @property
    def formula(self) -> str:
        """The model's equation with its numbers."""
        formula = f"y(k+1) = {number(self.a)} y(k) + {number(self.b)} u(k)"
        if not self.offset_per_s or not math.isfinite(self.offset_per_s):
            return formula
        sign = "+" if self.offset_per_s > 0 else "−"
        return f"{formula} {sign} {number(abs(self.offset_per_s))}"


def consumers_section(learned: Learned) -> Section:
    """Return the models of the consumer groups with the most samples."""
    section = Section("consumers", "How consumers answer to prefetch")
    rows = learned.rows("identification", _MODEL_COLUMNS, order=("group",))
    if not rows:
        return replace(
            section,
            missing="No consumer group has been identified: that needs samples of consumers whose "
            "prefetch changed. Let one change with `tidegate prefetch`, then run `tidegate learn`.",
        )
    models = sorted(map(_model, rows), key=lambda model: (-model.accepted, -model.samples))
    shown = models[:GROUPS_MAX]
    levels = grouped(
        learned.rows(
            "prefetch_levels",
            _LEVEL_COLUMNS,
            ("group", [model.group for model in shown]),
            ("group", "prefetch"),
        ),
        "group",
    )
    accepted = sum(model.accepted for model in models)
    sentence = (
        f"{counted(accepted, 'model')} of {counted(len(models), 'consumer group')} "
        f"{'was' if accepted == 1 else 'were'} accepted: u is the prefetch, y the arrival rate."
    )
    if len(models) > len(shown):
        sentence += f" Drawn are the {len(shown)} seen most, accepted ones first."
    return replace(
        section,
        sentence=sentence,
        charts=[
            model_chart(model, [_level(row) for row in levels[model.group]])
            for model in shown
            if model.group in levels
        ],
    )


def _model(row: Row) -> ConsumerModel:
    return ConsumerModel(
        group=row["group"],
        accepted=row["accepted"],
        reason=row["reason"],
        a=_or_nan(row["a"]),
        b=_or_nan(row["b"]),
        offset_per_s=_or_nan(row["offset_per_s"]),
        high=_or_nan(row["prefetch_high"]),
        r2_test=_or_nan(row["r2_test"]),
        rmse_test_per_s=_or_nan(row["rmse_test_per_s"]),
        samples=row["rows_train"] + row["rows_test"],
    )


def _level(row: Row) -> PrefetchLevel:
    settled = _or_nan(row["settled_per_s"])
    return PrefetchLevel(
        prefetch=row["prefetch"],
        samples=row["rows"],
        mean_per_s=row["arrival_per_s"],
        deviation_per_s=row["arrival_per_s_stddev"] or 0.0,
        settled_per_s=settled if math.isfinite(settled) else None,
        in_linear_range=row["in_linear_range"],
    )


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def model_chart(model: ConsumerModel, levels: Sequence[PrefetchLevel]) -> Chart:
    """Return mean and spread at each prefetch with the model's line; `levels` is not empty."""
    shown = [part[0] for part in slices(levels, _LEVELS_MAX)]

    def draw(axes: Axes) -> None:
        u = [level.prefetch for level in shown]
        mean = [level.mean_per_s for level in shown]
        spread = [level.deviation_per_s for level in shown]
        inside = [level.in_linear_range for level in shown]
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
        line = [(one.prefetch, one.settled_per_s) for one in shown if one.in_linear_range]
        if all(settled is not None for _, settled in line):
            axes.plot(
                [prefetch for prefetch, _ in line],
                [settled or 0.0 for _, settled in line],
                color=AMBER.light,
                linewidth=2.0,
                linestyle="-" if model.accepted else (0, (4, 3)),
                zorder=4,
            )
        if line and model.high < max(u):
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
        sentence = ended(f"Refused: {model.reason}")
    return Chart(
        title=model.group,
        sentence=sentence,
        measures="arrivals, msg/s, by prefetch",
        draw=draw,
        table=Table(
            "Arrival rate at each prefetch: mean and standard deviation.",
            ("prefetch", "samples", "mean", "deviation", "model"),
            [
                (
                    number(level.prefetch),
                    count(level.samples),
                    rate(level.mean_per_s),
                    rate(level.deviation_per_s),
                    rate(level.settled_per_s if level.in_linear_range else None),
                )
                for level in shown
            ],
            rows_in_all=len(levels),
        ),
    )
