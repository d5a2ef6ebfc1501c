"""Figure 3 and table 2: the plant without a controller, and its model."""

from __future__ import annotations

import math
from pathlib import Path

from tidegate.core.prefetch import R2_ACCEPTED
from tidegate.laws.estimation import Shape, linear_range
from tidegate.report.charts import ReportTable
from tidegate.simulation.figures import Line, Panel, draw_panels
from tidegate.tuning.experiment import ExperimentRecord
from tidegate_lab.bench.compare_report import Bar
from tidegate_lab.papers.prefetch.closed_loop import TestbedRun
from tidegate_lab.papers.prefetch.plan import PAPER
from tidegate_lab.report import Drawing, ExperimentFailed, ExperimentSection

# The highest rate may exceed the rate at the knee by this factor at most.
FLAT = 1.15


def open_loop_section(bench: TestbedRun, folder: Path) -> ExperimentSection:
    """Measure figure 3: the rate by prefetch."""
    record = bench.open_loop()
    found = linear_range(record.levels())
    if found.shape is not Shape.KNEE:
        raise ExperimentFailed(f"no knee in the open loop: the rate {found.reason}")
    ceiling = record.ceiling_per_s
    at_knee = found.slope * (found.high - record.open_loop[0].prefetch)
    at_knee += record.open_loop[0].rate_per_s
    _draw_open_loop(record, found.high, folder / "fig3.png")
    points = record.open_loop
    return ExperimentSection(
        name="fig3",
        title="Figure 3: open loop",
        source="Section 3.2, figure 3 and table 1: prefetch 1 to 360, step by step",
        paper=(
            f"The arrival rate is a line in the prefetch up to {PAPER.knee}, where one unit is "
            f"worth {PAPER.worth_per_s:.0f} msg/s by the model; beyond it grows no more in line."
        ),
        ours=(
            f"A line up to {found.high:.0f}, where one unit is worth {found.slope:.0f} msg/s; "
            f"beyond it {found.slope_beyond:.2g} msg/s. {ceiling:.0f} msg/s at the most."
        ),
        drawings=[
            Drawing(
                "fig3.png",
                "Arrival rate against prefetch; to the left the part below twice the knee.",
            )
        ],
        tables=[
            ReportTable(
                "Open loop",
                ("prefetch", "msg/s", "standard deviation", "per unit"),
                [
                    (
                        f"{point.prefetch}",
                        f"{point.rate_per_s:.0f}",
                        f"{point.deviation_per_s:.0f}",
                        f"{point.rate_per_s / point.prefetch:.1f}",
                    )
                    for point in points
                ],
            )
        ],
        bars=[
            Bar(
                "behind the knee a unit of prefetch is worth less than half of before",
                found.slope_beyond / found.slope,
                0.5,
                "of the slope",
                at_most=True,
            ),
            Bar(
                "flat: the most at any prefetch over the rate at the knee",
                ceiling / at_knee,
                FLAT,
                "×",
                at_most=True,
                beyond_the_issue=True,
            ),
        ],
        notes=[
            "Publishers offer 2 500 msg/s; the queue holds 20 000 and drops its oldest, so it "
            "neither runs dry nor grows without bound.",
            "The knee lies where the handler is busy all the time: (round trip + handler) / "
            "handler. The paper does not print its round trip.",
        ],
        data={"open_loop": [[one.prefetch, one.rate_per_s, one.deviation_per_s] for one in points]},
    )


def _draw_open_loop(record: ExperimentRecord, knee: float, file: Path) -> None:
    points = record.open_loop
    paper_x = [1.0, float(PAPER.knee)]
    paper = Line(
        "the paper's model, to its knee",
        paper_x,
        [PAPER.worth_per_s * u for u in paper_x],
        dashed=True,
    )

    def panel(title: str, up_to: float, *more: Line, x_log: bool = False) -> Panel:
        shown = [one for one in points if one.prefetch <= up_to]
        return Panel(
            title,
            "prefetch",
            "arrival rate, msg/s",
            [
                Line(
                    "measured",
                    [one.prefetch for one in shown],
                    [one.rate_per_s for one in shown],
                    [one.deviation_per_s for one in shown],
                ),
                *more,
            ],
            moments={f"knee, {knee:.0f}": knee},
            x_log=x_log,
        )

    near = max(2.0 * knee, float(PAPER.knee))
    draw_panels([panel("To the knee", near, paper), panel("All", math.inf, x_log=True)], file)


def model_section(bench: TestbedRun, folder: Path) -> ExperimentSection:
    """Identify the model of table 2."""
    line, found = bench.identified()
    ours = f"({found.a:.2f}, {found.b:.2f})"
    if abs(found.offset_per_s) >= 0.5:
        ours += f", offset {found.offset_per_s:+.0f}"
    within = f"[{line.low:.0f}, {line.high:.0f}]"
    rows = [
        ("paper", "[1, 22]", f"({PAPER.a}, {PAPER.b})", "training", "–", *_paper_quality(True)),
        ("paper", "[1, 22]", f"({PAPER.a}, {PAPER.b})", "test", "–", *_paper_quality(False)),
        (
            *("ours", within, ours, "training", f"{found.n_train}"),
            *_quality(found.rmse_train_per_s, found.r2_train),
        ),
        (
            *("ours", within, ours, "test", f"{found.n_test}"),
            *_quality(found.rmse_test_per_s, found.r2_test),
        ),
    ]
    return ExperimentSection(
        name="table2",
        title="Table 2: the model",
        source="Section 3.2, table 2: y(k+1) = a·y(k) + b·u(k) by least squares",
        paper=(
            f"a = {PAPER.a}, b = {PAPER.b}; R² {PAPER.r2_test} on test data. What is printed as "
            f"RMSE, {PAPER.mean_square_test:,.0f}, exceeds every rate: it is a mean square, whose "
            f"root is {math.sqrt(PAPER.mean_square_test):.0f} msg/s."
        ),
        ours=(
            f"a = {found.a:.2f} ± {found.a_error:.2f}, b = {found.b:.1f} ± {found.b_error:.1f}; "
            f"R² {found.r2_test:.3f} and RMSE {found.rmse_test_per_s:.0f} msg/s on test data."
        ),
        tables=[
            ReportTable(
                "Model evaluation",
                (
                    *("", "prefetch", "(a, b)", "data", "samples"),
                    *("mean square", "RMSE, msg/s", "R²"),
                ),
                rows,
            )
        ],
        bars=[Bar("test data explained (R²)", found.r2_test, R2_ACCEPTED, "")],
        notes=[
            "Training and test data are separate runs of random prefetches within the line: what "
            "`tidegate tune prefetch` does, by the same code.",
            "a is what is left of one sample in the next. A round trip takes milliseconds, so with "
            "whole seconds hardly anything is; the paper's 0.26 at 10 s has another cause.",
        ],
        data={
            "a": found.a,
            "b": found.b,
            "offset_per_s": found.offset_per_s,
            "r2_test": found.r2_test,
            "rmse_test_per_s": found.rmse_test_per_s,
        },
    )


def _paper_quality(training: bool) -> tuple[str, str, str]:
    square = PAPER.mean_square_training if training else PAPER.mean_square_test
    r2 = PAPER.r2_training if training else PAPER.r2_test
    return f"{square:,.0f}", f"{math.sqrt(square):.0f}", f"{r2:.2f}"


def _quality(rmse: float, r2: float) -> tuple[str, str, str]:
    return f"{rmse**2:,.0f}", f"{rmse:.0f}", f"{r2:.3f}"
