"""The figure of a tuning: open loop, held-out data, and the predicted step.

For a refused experiment only the open loop is known. It is drawn, because it shows the reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from tidegate.core.errors import InvalidValue
from tidegate.core.text import escape_control_characters
from tidegate.report import charts
from tidegate.report.charts import STYLE
from tidegate.tuning import TuningGoal
from tidegate.tuning.experiment import (
    NEARLY_ALL,
    ExperimentPhase,
    ExperimentRecord,
    TuningResult,
    settled_per_s,
)

DOTS_PER_INCH = 130
PANEL_WIDTH_IN, HEIGHT_IN = 4.6, 3.7
# Multiple of the prefetch of the knee up to which the open loop is shown.
SHOWN_BEYOND = 4
# Multiple of the settling time for which the step is shown.
STEP_SHOWN = 1.5

_OVERRIDES: dict[Any, Any] = {
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelsize": 9.0,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}
_BLUE, _AMBER, _TEAL = charts.BLUE.light, charts.AMBER.light, charts.TEAL.light
_SOFT, _BRICK = charts.SOFT.light, charts.BRICK.light


def draw_tuning(
    file: Path, queue: str, wish: TuningGoal, record: ExperimentRecord, tuned: TuningResult | None
) -> None:
    """Write the figure to `file`; the suffix of its name selects the format.

    `tuned` is `None` for a refused experiment. Raises `InvalidValue` if the file cannot be
    written.
    """
    with mpl.rc_context(STYLE | _OVERRIDES):
        panels = 3 if tuned is not None else 1
        # A single panel is wider, so that its texts fit.
        width_in = PANEL_WIDTH_IN * panels if panels > 1 else 1.4 * PANEL_WIDTH_IN
        figure = Figure(figsize=(width_in, HEIGHT_IN), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, panels, squeeze=False)[0]
        _open_loop(axes[0], queue, wish, record, tuned)
        if tuned is not None:
            _held_out(axes[1], tuned)
            _step(axes[2], wish, tuned)
        for one in axes:
            one.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
            one.set_ylim(bottom=0.0)
        try:
            figure.savefig(file, dpi=DOTS_PER_INCH, facecolor="white")
        except (OSError, ValueError) as failure:
            raise InvalidValue(f"the picture {file} cannot be written: {failure}") from None


def _open_loop(
    axes: Axes, queue: str, wish: TuningGoal, record: ExperimentRecord, tuned: TuningResult | None
) -> None:
    points = record.open_loop
    axes.set_title(f"Open loop of {escape_control_characters(queue)}")
    axes.set_xlabel("prefetch")
    axes.set_ylabel("arrival rate, msg/s")
    shown_to = _shown_to(record)
    axes.set_xlim(0.0, 1.04 * shown_to)
    if tuned is not None:
        low, high = tuned.model.low, tuned.model.high
        axes.axvspan(low, high, color=charts.PALE.light, alpha=0.45, linewidth=0.0)
        axes.text(
            (low + high) / 2.0, 0.97, "linear", transform=axes.get_xaxis_transform(),
            ha="center", va="top", fontsize=8.5, color=_SOFT,
        )  # fmt: skip
        steps = [low + (high - low) * step / 60 for step in range(61)]
        axes.plot(
            steps, [settled_per_s(tuned.identified, u) for u in steps],
            color=_AMBER, label="model at rest", zorder=3,
        )  # fmt: skip
    if shown_to < points[-1].prefetch:
        axes.text(
            0.99, 0.75, f"{points[-1].rate_per_s:,.0f} msg/s at {points[-1].prefetch} →",
            transform=axes.transAxes, ha="right", fontsize=8.5, color=_SOFT,
        )  # fmt: skip
    axes.errorbar(
        [one.prefetch for one in points], [one.rate_per_s for one in points],
        yerr=[one.deviation_per_s for one in points],
        color=_BLUE, marker="o", markersize=4.0, linewidth=1.0, elinewidth=0.8, label="measured",
    )  # fmt: skip
    axes.axhline(
        wish.target_per_s, color=_TEAL, linestyle=(0, (4, 3)), linewidth=1.2,
        label=f"target {wish.target_per_s:g}",
    )  # fmt: skip
    axes.legend(loc="lower right")


def _shown_to(record: ExperimentRecord) -> float:
    """Return the largest prefetch to show. A range to 360 would hide a knee at 9."""
    enough = record.prefetch_of(NEARLY_ALL)
    return float(min(record.open_loop[-1].prefetch, max(SHOWN_BEYOND * enough, 8)))


def _held_out(axes: Axes, tuned: TuningResult) -> None:
    found = tuned.identified
    samples = [
        one for one in tuned.record.of(ExperimentPhase.HELD_OUT) if one.before_per_s is not None
    ]
    predicted = [
        found.a * (one.before_per_s or 0.0) + found.b * one.prefetch + found.offset_per_s
        for one in samples
    ]
    axes.set_title(f"Held out: R² {found.r2_test:.3f}, RMSE {found.rmse_test_per_s:.1f} msg/s")
    axes.set_xlabel("sample")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.plot([one.rate_per_s for one in samples], "o", markersize=4.5, color=_BLUE,
              label="measured")  # fmt: skip
    axes.plot(predicted, color=_AMBER, linewidth=1.4, drawstyle="steps-mid",
              label=f"{found.a:.3g}·y + {found.b:.3g}·u {found.offset_per_s:+.3g}")  # fmt: skip
    axes.margins(y=0.25)
    axes.legend(loc="upper right", ncols=2)


def _step(axes: Axes, wish: TuningGoal, tuned: TuningResult) -> None:
    controller = tuned.model.controller
    count = max(int(STEP_SHOWN * wish.settling_samples), 8)
    rates = tuned.loop.response_per_s(wish.target_per_s, count)
    axes.set_title(
        f"{controller.kind}, predicted: {controller.settle_s:g} s, "
        f"{controller.overshoot:.1%} overshoot"
    )
    axes.set_xlabel("seconds after a step of the target from 0")
    axes.step(
        [k * wish.sample_s for k in range(count)], rates, where="post", color=_BLUE, linewidth=1.5
    )
    axes.axhline(wish.target_per_s, color=_TEAL, linestyle=(0, (4, 3)), linewidth=1.2)
    axes.axvline(wish.settle_s, color=_SOFT, linestyle=(0, (1, 2)), linewidth=1.2)
    axes.text(
        wish.settle_s, 0.03, " asked for", transform=axes.get_xaxis_transform(),
        fontsize=8.5, color=_SOFT,
    )  # fmt: skip
    axes.margins(y=0.15)
