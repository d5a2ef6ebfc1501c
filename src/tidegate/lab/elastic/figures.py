"""Figures of elastic queues: arrivals, load, replicas and machines over time.

The layout is that of the paper's figures 4 to 8, for comparison. A policy has the same colour in
every figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import msgspec
from matplotlib import pyplot

from tidegate.lab.report.figures import DOTS_PER_INCH, Line, Panel, draw_rows
from tidegate.report import palette
from tidegate.simulation.outcome import Outcome

# The paper's listing without changes; the policy "load" looks ahead.
AS_PRINTED = "load as printed"
POLICY_COLOURS = {
    "load": palette.AMBER.light,
    AS_PRINTED: palette.GREY.light,
    "length": palette.VIOLET.light,
    "feed-forward": palette.TEAL.light,
    "clients": palette.BLUE.light,
    "fixed": palette.GREY.light,
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
    outcomes: Sequence[Outcome], file: Path, *, title: str, paper: Reference | None = None
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
            colour=palette.SOFT.light,
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
    arriving = [Line("arriving", first.t_s, first.rate_per_s, colour=palette.BLUE.light)]
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


def _colour(outcome: Outcome) -> str:
    return POLICY_COLOURS.get(outcome.policy, palette.INK.light)


def draw_scatter(
    points: Mapping[str, Sequence[tuple[float, float]]], file: Path, *, title: str
) -> None:
    """Draw each run as a dot: machine-seconds to the right, seconds above max_load upwards."""
    figure, axes = pyplot.subplots(figsize=(9.0, 4.4), layout="constrained")
    try:
        for policy, dots in points.items():
            colour = POLICY_COLOURS.get(policy, palette.INK.light)
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
        axes.grid(color=palette.GRID.light, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.legend(frameon=False, fontsize=9)
        figure.savefig(file, dpi=DOTS_PER_INCH, facecolor="white")
    finally:
        pyplot.close(figure)
