"""Figures of elastic queues: arrivals, load, replicas and machines over time.

The layout is that of the paper's figures 4 to 8, for comparison. A policy has the same colour in
every figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import msgspec
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tidegate.report import charts
from tidegate.simulation.run import SimulationResult

mpl.use("Agg")

# The paper's listing without changes; the policy "load" looks ahead.
AS_PRINTED = "load as printed"
POLICY_COLOURS = {
    "load": charts.AMBER.light,
    AS_PRINTED: charts.GREY.light,
    "length": charts.VIOLET.light,
    "feed-forward": charts.TEAL.light,
    "clients": charts.BLUE.light,
    "fixed": charts.GREY.light,
}
POLICY_NAMES = {"load": "load (the paper's)", "length": "length (KEDA-like)"}


def name_of(policy: str) -> str:
    return POLICY_NAMES.get(policy, policy)


class Reference(msgspec.Struct, frozen=True):
    """Values that a paper prints about a figure, drawn as levels with labels."""

    rate_per_s: Mapping[str, float] = {}
    average_load: Mapping[str, float] = {}
    replicas: Mapping[str, float] = {}


def draw_outcomes(
    outcomes: Sequence[SimulationResult], file: Path, *, title: str, paper: Reference | None = None
) -> None:
    """Draw one load under one or more policies."""
    paper = paper or Reference()
    first = outcomes[0].series
    load = [
        Line(name_of(one.policy), one.series.t_s, one.series.average_load, colour=_colour(one))
        for one in outcomes
    ]
    replicas = [
        Line(
            "ideal",
            first.t_s,
            [float(count) for count in first.ideal],
            dashed=True,
            colour=charts.SOFT.light,
        ),
        *(
            Line(
                name_of(one.policy),
                one.series.t_s,
                [float(n) for n in one.series.replicas],
                colour=_colour(one),
            )
            for one in outcomes
        ),
    ]
    machines = [
        Line(
            name_of(one.policy),
            one.series.t_s,
            [
                float(up + booting)
                for up, booting in zip(one.series.machines, one.series.booting, strict=True)
            ],
            colour=_colour(one),
        )
        for one in outcomes
    ]
    arriving = [Line("arriving", first.t_s, first.rate_per_s, colour=charts.BLUE.light)]
    draw_rows(
        [
            Panel(title, "s", "messages a second", arriving, levels=paper.rate_per_s),
            Panel(
                "Average load",
                "s",
                "waiting per replica",
                load,
                levels={"max_load": outcomes[0].max_load, **paper.average_load},
            ),
            Panel(
                "Replicas that serve",
                "s",
                "replicas",
                replicas,
                levels=paper.replicas,
                whole=True,
            ),
            Panel("Machines, booting ones too", "s", "machines", machines, whole=True),
        ],
        file,
        height_in=2.2,
    )


def _colour(outcome: SimulationResult) -> str:
    return POLICY_COLOURS.get(outcome.policy, charts.INK.light)


def draw_scatter(
    points: Mapping[str, Sequence[tuple[float, float]]], file: Path, *, title: str
) -> None:
    """Draw each run as a dot: machine-seconds to the right, seconds above max_load upwards."""
    figure, axes = pyplot.subplots(figsize=(9.0, 4.4), layout="constrained")
    try:
        for policy, dots in points.items():
            colour = POLICY_COLOURS.get(policy, charts.INK.light)
            x, y = [dot[0] for dot in dots], [dot[1] for dot in dots]
            axes.scatter(x, y, s=9, alpha=0.35, color=colour, linewidths=0)
            axes.scatter(
                [sum(x) / len(x)],
                [sum(y) / len(y)],
                s=120,
                color=colour,
                marker="D",
                edgecolors="white",
                label=f"{name_of(policy)}, mean",
                zorder=3,
            )
        axes.set_yscale("symlog", linthresh=10)
        axes.set_ylim(bottom=0)
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
        axes.set_xlabel("machine-seconds paid")
        axes.set_ylabel("seconds above max_load")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color=charts.GRID.light, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.legend(frameon=False, fontsize=9)
        figure.savefig(file, dpi=DOTS_PER_INCH, facecolor="white")
    finally:
        pyplot.close(figure)


# Figures of experiments, in one style.
#
# A colour belongs to a subject, not to a position in a list: messages are blue in every figure.
# Lines and levels are labelled in place where possible. Drawing needs no screen.


mpl.use("Agg")

DOTS_PER_INCH = 130
WIDTH_IN = 9.0
# The height of a level's label, as a fraction of the axes' height.
_NAME_HEIGHT = 0.1

COLOURS = {
    "messages": charts.BLUE.light,
    "packets": charts.AMBER.light,
    "put": charts.BLUE.light,
    "read hit": charts.TEAL.light,
    "read miss": charts.VIOLET.light,
    "waiting read": "#7fb8a4",
    "request": charts.BRICK.light,
    "waiting for client": charts.GREY.light,
    "parsing": charts.AMBER.light,
    "store": charts.BLUE.light,
    "waiting for a message": charts.PALE.light,
    "responding": charts.BRICK.light,
}
_INK = charts.INK.light
_FAINT = charts.GREY.light
_OTHERS = tuple(
    colour.light
    for colour in (
        *(charts.BLUE, charts.AMBER, charts.TEAL),
        *(charts.BRICK, charts.VIOLET, charts.SOFT),
    )
)
_STYLE: dict[Any, Any] = {
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": charts.AXIS.light,
    "axes.labelcolor": _INK,
    "axes.titlesize": 11.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": charts.GRID.light,
    "grid.linewidth": 0.8,
    "text.color": _INK,
    "xtick.color": charts.SOFT.light,
    "ytick.color": charts.SOFT.light,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
}


class Line(msgspec.Struct, frozen=True):
    """The points of one subject; `errors` adds error bars."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    errors: Sequence[float] | None = None
    dashed: bool = False
    colour: str | None = None


class Panel(msgspec.Struct, frozen=True):
    """One pair of axes."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    # Names for positions that are categories; they are drawn at equal distances.
    x_names: Sequence[str] | None = None
    # Levels drawn across the whole panel, by label.
    levels: Mapping[str, float] = {}
    # Positions marked from top to bottom, by label.
    moments: Mapping[str, float] = {}
    # Whether to mark the highest point of the first line.
    mark_best: bool = False
    y_from_zero: bool = True
    # Counts: ticks at whole numbers only.
    whole: bool = False
    # A logarithmic axis, so that values below ten remain visible next to hundreds.
    x_log: bool = False


def colour_of(label: str, position: int) -> str:
    return COLOURS.get(label, _OTHERS[position % len(_OTHERS)])


@contextmanager
def _drawing(file: Path, rows: int, columns: int, height_in: float) -> Iterator[Sequence[Axes]]:
    with mpl.rc_context(_STYLE):
        figure: Figure
        figure, axes = pyplot.subplots(
            rows, columns, figsize=(WIDTH_IN, height_in), squeeze=False, layout="constrained"
        )
        try:
            yield [one for row in axes for one in row]
            figure.savefig(file, dpi=DOTS_PER_INCH, facecolor="white")
        finally:
            pyplot.close(figure)


def draw_panels(
    panels: Sequence[Panel], file: Path, *, height_in: float = 3.6, same_scale: bool = False
) -> None:
    """Draw panels next to each other; `same_scale` gives them the same vertical scale."""
    with _drawing(file, 1, len(panels), height_in) as axes:
        for panel, each in zip(panels, axes, strict=True):
            _draw_panel(panel, each)
        if same_scale:
            _same_scale(axes)


def draw_rows(
    panels: Sequence[Panel], file: Path, *, height_in: float = 2.6, same_scale: bool = False
) -> None:
    """Draw panels below each other, with time along the shared axis."""
    with _drawing(file, len(panels), 1, height_in * len(panels)) as axes:
        for position, (panel, each) in enumerate(zip(panels, axes, strict=True)):
            _draw_panel(panel, each)
            each.margins(x=0.01)
            if position < len(panels) - 1:
                each.set_xlabel("")
        if same_scale:
            _same_scale(axes)


def draw_grid(
    panels: Sequence[Panel], file: Path, *, height_in: float = 2.3, one_legend: bool = False
) -> None:
    """Draw panels in rows of two; `one_legend` draws one legend for panels with the same lines."""
    rows = (len(panels) + 1) // 2
    with _drawing(file, rows, 2, height_in * rows + 0.3 * one_legend) as axes:
        for panel, each in zip(panels, axes, strict=False):
            _draw_panel(panel, each, legend=not one_legend)
        if one_legend:
            handles, labels = axes[0].get_legend_handles_labels()
            figure = axes[0].get_figure()
            assert isinstance(figure, Figure)
            figure.legend(
                handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9
            )
        for empty in axes[len(panels) :]:
            empty.set_visible(False)


def draw_bars(
    bars: Mapping[str, Mapping[str, float]], file: Path, *, logarithmic: Sequence[str] = ()
) -> None:
    """Draw a panel for each quantity, with a bar for each name."""
    with _drawing(file, 1, len(bars), 3.4) as axes:
        for position, ((title, values), each) in enumerate(zip(bars.items(), axes, strict=True)):
            each.set_title(title)
            each.grid(visible=False, axis="x")
            drawn = each.bar(list(values), list(values.values()), color=colour_of(title, position))
            each.bar_label(drawn, [_few_digits(value) for value in values.values()], fontsize=9)
            if title in logarithmic:
                each.set_yscale("symlog", linthresh=1.0)
            each.margins(y=0.12)
            each.yaxis.set_major_formatter(FuncFormatter(_thousands))


def _few_digits(value: float) -> str:
    return _thousands(round(value), 0) if value >= 10.0 else f"{value:.1f}"


def _same_scale(axes: Sequence[Axes]) -> None:
    highest = max(each.get_ylim()[1] for each in axes)
    for each in axes:
        each.set_ylim(top=highest)


def _draw_panel(panel: Panel, axes: Axes, *, legend: bool = True) -> None:
    axes.set_title(panel.title)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    highest = 0.0
    for position, line in enumerate(panel.lines):
        if not line.x:
            continue
        x = list(range(len(line.x))) if panel.x_names else list(line.x)
        # A dashed line between two points is a level, and needs no markers.
        is_level = line.dashed and len(x) == 2
        is_marked = len(x) <= 20 and not is_level
        markers: dict[str, Any] = {"marker": "o", "markersize": 5} if is_marked else {}
        axes.errorbar(
            x,
            line.y,
            yerr=line.errors,
            label=line.label,
            color=line.colour or colour_of(line.label, position),
            linestyle="--" if line.dashed else "-",
            capsize=3,
            elinewidth=1.2,
            **markers,
        )
        errors = line.errors or [0.0] * len(line.y)
        highest = max([highest, *(y + e for y, e in zip(line.y, errors, strict=True))])
    for name, level in panel.levels.items():
        axes.axhline(level, color=_FAINT, linewidth=1.2, linestyle=":")
        highest = max(highest, level)
        room = _NAME_HEIGHT * highest
        # Put the label of the lower of two close levels below it, so that the labels do not
        # overlap.
        near = [one for one in panel.levels.values() if 0.0 < abs(one - level) < 2 * room]
        # Otherwise put it above the level, unless a line crosses there and there is room below.
        in_the_way = level < max(near) if near else _is_crowded(panel.lines, level, level + room)
        below = level > 2 * room and in_the_way
        axes.annotate(
            name,
            (1.0, level),
            xycoords=("axes fraction", "data"),
            xytext=(-2, -4 if below else 4),
            textcoords="offset points",
            ha="right",
            va="top" if below else "baseline",
            color=charts.SOFT.light,
            fontsize=9,
        )
    for name, moment in panel.moments.items():
        axes.axvline(moment, color=_FAINT, linewidth=1.2, linestyle=":")
        axes.annotate(
            name,
            (moment, 0.0),
            xycoords=("data", "axes fraction"),
            xytext=(4, 5),
            textcoords="offset points",
            color=charts.SOFT.light,
            fontsize=9,
        )
    if panel.x_log:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(_thousands))
    if panel.x_names:
        axes.set_xticks(range(len(panel.x_names)), panel.x_names)
        axes.margins(x=0.08)
    if panel.y_from_zero and highest > 0:
        axes.set_ylim(0, highest * 1.18)
    if panel.mark_best and panel.lines and panel.lines[0].y:
        _mark_best(panel, axes)
    axes.yaxis.set_major_formatter(FuncFormatter(_thousands))
    if panel.whole:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    if legend and len(panel.lines) > 1:
        axes.legend(loc="best", fontsize=9)


def _is_crowded(lines: Sequence[Line], low: float, high: float) -> bool:
    """Return whether a line runs between the two heights in the right two thirds of the panel.

    The labels of levels are written there.
    """
    return any(low < y < high for line in lines for y in line.y[len(line.y) // 3 :])


def _mark_best(panel: Panel, axes: Axes) -> None:
    line = panel.lines[0]
    best = max(range(len(line.y)), key=lambda position: line.y[position])
    x = best if panel.x_names else line.x[best]
    axes.annotate(
        "best",
        (x, line.y[best]),
        xytext=(0, 16),
        textcoords="offset points",
        ha="center",
        fontsize=9,
        fontweight="bold",
        color=_INK,
        arrowprops={"arrowstyle": "-|>", "color": _INK, "linewidth": 1.0},
    )


def _thousands(value: float, _: int) -> str:
    if value == int(value):
        return f"{int(value):,}".replace(",", " ")
    return f"{value:g}"


def draw_distribution(
    bins: Mapping[str, Sequence[float]], file: Path, *, title: str, x_label: str, bin_width: float
) -> None:
    """Draw shares per bin, one panel per subject, up to the bin that includes 99.9 % of each."""
    reach = max([4, *(_reach(shares) for shares in bins.values())])
    with _drawing(file, len(bins), 1, 1.75 * len(bins) + 0.4) as axes:
        for position, ((label, shares), each) in enumerate(zip(bins.items(), axes, strict=True)):
            each.bar(
                [(index + 0.5) * bin_width for index in range(len(shares))],
                shares,
                width=bin_width,
                color=colour_of(label, position),
            )
            each.set_ylabel("share")
            each.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
            # The same scale for all panels makes them comparable.
            each.set_xlim(0, reach * bin_width)
            each.xaxis.set_major_locator(MaxNLocator(integer=True))
            each.set_title(f"{title}: {label}" if position == 0 else label)
        axes[-1].set_xlabel(x_label)


def _reach(shares: Sequence[float]) -> int:
    """Return the number of bins that hold 99.9 %."""
    total = 0.0
    for index, share in enumerate(shares):
        total += share
        if total >= 0.999 * sum(shares):
            return index + 1
    return len(shares)


def draw_shares(
    shares: Mapping[str, Mapping[str, float]], file: Path, *, title: str, x_label: str
) -> None:
    """Draw one bar per name, divided into parts, with a legend below."""
    parts = list(dict.fromkeys(part for whole in shares.values() for part in whole))
    with _drawing(file, 1, 1, 1.5 + 0.62 * len(shares)) as (axes,):
        axes.set_title(title)
        axes.grid(visible=False)
        names = list(shares)[::-1]
        left = [0.0] * len(names)
        for position, part in enumerate(parts):
            widths = [shares[name].get(part, 0.0) for name in names]
            axes.barh(
                names,
                widths,
                left=left,
                height=0.6,
                label=part,
                color=colour_of(part, position),
                edgecolor="white",
                linewidth=0.8,
            )
            for row, (width, start) in enumerate(zip(widths, left, strict=True)):
                if width >= 0.06:
                    pale = part in ("waiting for client", "waiting for a message")
                    axes.text(
                        start + width / 2,
                        row,
                        f"{100 * width:.1f} %",
                        ha="center",
                        va="center",
                        fontsize=9,
                        color=_INK if pale else "white",
                    )
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axes.set_xlim(0, 1)
        axes.set_xlabel(x_label)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.24), ncols=len(parts), fontsize=9)
