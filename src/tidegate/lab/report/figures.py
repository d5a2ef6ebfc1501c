"""Figures in one style: few kinds, each made for one question.

Strategy: a colour belongs to a thing and not to a place in a list, so messages are blue in every
figure. Grids are faint, frames are left out, and what matters is written at the line itself.
Drawing happens without a screen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import msgspec
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tidegate.report import palette

DOTS_PER_INCH = 130
WIDTH_IN = 9.0

COLOURS = {
    "messages": palette.BLUE.light,
    "packets": palette.AMBER.light,
    "put": palette.BLUE.light,
    "read hit": palette.TEAL.light,
    "read miss": palette.VIOLET.light,
    "waiting read": "#7fb8a4",
    "request": palette.BRICK.light,
    "waiting for client": palette.GREY.light,
    "parsing": palette.AMBER.light,
    "store": palette.BLUE.light,
    "waiting for a message": palette.PALE.light,
    "responding": palette.BRICK.light,
}
_INK = palette.INK.light
_FAINT = palette.GREY.light
_OTHERS = tuple(
    colour.light
    for colour in (
        *(palette.BLUE, palette.AMBER, palette.TEAL),
        *(palette.BRICK, palette.VIOLET, palette.SOFT),
    )
)
_STYLE: dict[Any, Any] = {
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": palette.AXIS.light,
    "axes.labelcolor": _INK,
    "axes.titlesize": 11.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": palette.GRID.light,
    "grid.linewidth": 0.8,
    "text.color": _INK,
    "xtick.color": palette.SOFT.light,
    "ytick.color": palette.SOFT.light,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
}


class Line(msgspec.Struct, frozen=True):
    """Points of one thing; with errors, they get bars."""

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
    # Positions that are categories rather than quantities get names and equal distances.
    x_names: Sequence[str] | None = None
    # A level that is right for the whole panel, with its name.
    levels: Mapping[str, float] = {}
    # Where the best is, on the first line.
    mark_best: bool = False
    y_from_zero: bool = True


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


def draw_panels(panels: Sequence[Panel], file: Path, *, height_in: float = 3.6) -> None:
    """Panels beside each other."""
    with _drawing(file, 1, len(panels), height_in) as axes:
        for panel, each in zip(panels, axes, strict=True):
            _draw_panel(panel, each)


def draw_rows(panels: Sequence[Panel], file: Path, *, height_in: float = 2.6) -> None:
    """Panels below each other, for time that runs along."""
    with _drawing(file, len(panels), 1, height_in * len(panels)) as axes:
        for position, (panel, each) in enumerate(zip(panels, axes, strict=True)):
            _draw_panel(panel, each)
            each.margins(x=0.01)
            if position < len(panels) - 1:
                each.set_xlabel("")


def _draw_panel(panel: Panel, axes: Axes) -> None:
    axes.set_title(panel.title)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    highest = 0.0
    for position, line in enumerate(panel.lines):
        if not line.x:
            continue
        x = list(range(len(line.x))) if panel.x_names else list(line.x)
        markers: dict[str, Any] = {"marker": "o", "markersize": 5} if len(x) <= 20 else {}
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
        axes.annotate(
            name,
            (1.0, level),
            xycoords=("axes fraction", "data"),
            xytext=(-2, 4),
            textcoords="offset points",
            ha="right",
            color=palette.SOFT.light,
            fontsize=9,
        )
        highest = max(highest, level)
    if panel.x_names:
        axes.set_xticks(range(len(panel.x_names)), panel.x_names)
        axes.margins(x=0.08)
    if panel.y_from_zero and highest > 0:
        axes.set_ylim(0, highest * 1.18)
    if panel.mark_best and panel.lines and panel.lines[0].y:
        _mark_best(panel, axes)
    axes.yaxis.set_major_formatter(FuncFormatter(_thousands))
    if len(panel.lines) > 1:
        axes.legend(loc="best", fontsize=9)


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
    """Shares per bin, one panel for each thing, cut where 99.9 % of each lie to the left."""
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
            # The same scale for all: they are there to be compared.
            each.set_xlim(0, reach * bin_width)
            each.xaxis.set_major_locator(MaxNLocator(integer=True))
            each.set_title(f"{title}: {label}" if position == 0 else label)
        axes[-1].set_xlabel(x_label)


def _reach(shares: Sequence[float]) -> int:
    """In how many bins 99.9 % lie."""
    total = 0.0
    for index, share in enumerate(shares):
        total += share
        if total >= 0.999 * sum(shares):
            return index + 1
    return len(shares)


def draw_shares(
    shares: Mapping[str, Mapping[str, float]], file: Path, *, title: str, x_label: str
) -> None:
    """Wholes cut into parts, one bar each, the parts named below."""
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
