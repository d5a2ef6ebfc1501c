"""The paper's controllers, computed again from its model, and a proof of their stability.

This experiment only computes. The paper's polynomials and its a and b determine its gains. Each
gain is compared with the printed value, in units of its last digit.

The paper leaves the proof of stability for later. A loop is stable if all roots of its denominator
lie within the unit circle. The test of Schur and Cohn decides this without the roots
(laws/pole_placement), also for late measurements. b only scales the gains, so that plants need
differ in a only.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tidegate.laws.prefetch.design import (
    ControllerType,
    Gains,
    Requirement,
    closed_loop,
    find_design,
    pi_gains,
    pid_gains,
    proportional_bounds,
    roots_within,
)
from tidegate.laws.prefetch.fit import LinearModel
from tidegate.report.charts import ReportTable
from tidegate.simulation.figures import Line, Panel, draw_panels
from tidegate.tuning.result import ClosedLoop, analyse_loop, format_poles
from tidegate_lab.bench.compare_report import Bar
from tidegate_lab.papers.prefetch.closed_loop import TestbedRun
from tidegate_lab.report import Drawing, ExperimentSection

# The paper prints a = 0.26, but its printed bounds of Kp follow from 0.2631.
PAPER_MODEL = LinearModel(0.2631, 59.73, 0.0)
# The coefficients of the paper's polynomials for PI and PID, without the leading 1.
PAPER_PI, PAPER_PID = (-1.0, 0.36), (-0.7, -0.063, 0.11)
LATE_SAMPLES = 2
# The requirement of the product's loops: 15 samples, 5 % overshoot, measurements two samples late.
REQUIREMENT = Requirement(15, overshoot=0.05, late_samples=LATE_SAMPLES, is_calm=True)
# Values of a from -0.5, a plant that alternates, to 0.9, a plant that responds slowly.
PLANTS = tuple(round(-0.5 + 0.05 * step, 2) for step in range(29))
DRAWN_SAMPLES = 20


class PaperValue(msgspec.Struct, frozen=True):
    """A number of the paper and our value of it."""

    what: str
    # The number as printed.
    text: str
    ours: float

    @property
    def digits(self) -> int:
        return len(self.text.partition(".")[2])

    @property
    def units_off(self) -> int:
        """The difference in units of the last printed digit."""
        off = round(self.ours, self.digits) - float(self.text)
        return abs(round(off * 10.0**self.digits))


class RobustnessCheck(msgspec.Struct, frozen=True):
    """The loop that is designed for one plant, with its largest pole at each delay."""

    kind: str
    a: float
    # The largest pole with measurements late by 0, 1, 2 samples; None if no controller meets the
    # requirement.
    radii: list[float] | None
    is_proved: bool


def design_section(bench: TestbedRun, folder: Path) -> ExperimentSection:
    """Compute the design of section 3.2 and the formal check of section 5."""
    model = PAPER_MODEL
    pi = pi_gains(model.a, model.b, PAPER_PI)
    pid = pid_gains(model.a, model.b, PAPER_PID)
    printed = printed_numbers(model, pi, pid)
    loops = {gains.kind: analyse_loop(model, gains, LATE_SAMPLES) for gains in (pi, pid)}
    vetted = [_vetted(kind, a, model.b) for kind in ControllerType for a in PLANTS]
    designed = [one for one in vetted if one.radii is not None]
    unproved = [one for one in designed if not one.is_proved]
    bench.progress(f"{len(designed)} designs looked through, {len(unproved)} not proved stable")
    _draw(loops, vetted, bench.plan.target_per_s, folder / "design.png")
    # P and PI follow from a, b and two digits of a polynomial. PID is printed with more digits
    # than its inputs have, so it cannot be exact.
    exact = [one for one in printed if not one.what.startswith("PID")]
    rest = [one for one in printed if one.what.startswith("PID")]
    return ExperimentSection(
        name="design",
        title="Controllers by pole placement, and a formal check",
        source="Section 3.2, P, PI and PID; section 5, future work: formally check properties",
        paper="; ".join(f"{one.what} {one.text}" for one in printed) + ". Stability is not proved.",
        ours=(
            f"{sum(one.units_off == 0 for one in printed)} of {len(printed)} numbers to the last "
            f"printed digit, the others off by {max(one.units_off for one in rest)} units of the "
            f"seventh at most. Of {len(designed)} designs for plants from a = {PLANTS[0]:g} to "
            f"{PLANTS[-1]:g}, {len(designed) - len(unproved)} are proved stable with measurements "
            f"in time and late by up to {LATE_SAMPLES} samples."
        ),
        drawings=[
            Drawing(
                "design.png",
                "Left: what the paper's gains would do on its model. Right: the largest pole of "
                "PI loops as they are designed here, by the plant's a; below 1 is stable.",
            )
        ],
        tables=[
            ReportTable(
                "The paper's numbers from a = 0.2631 and b = 59.73",
                ("", "paper", "ours", "units of the last digit off"),
                [
                    (one.what, one.text, f"{one.ours:.{one.digits + 1}f}", f"{one.units_off}")
                    for one in printed
                ],
            ),
            ReportTable(
                "The paper's loops on its model",
                ("", "poles", "settles, samples", "overshoot", "largest pole, late by 0, 1, 2"),
                [
                    (
                        str(kind),
                        format_poles(loop.poles),
                        f"{loop.predicted.settling_samples}",
                        f"{loop.predicted.overshoot:.0%}",
                        ", ".join(f"{radius:.3f}" for radius in loop.late_radii),
                    )
                    for kind, loop in loops.items()
                ],
            ),
        ],
        bars=[
            Bar(
                "P and PI: units of the last printed digit off",
                float(max(one.units_off for one in exact)),
                0.0,
                "",
                at_most=True,
            ),
            Bar(
                "PID, printed with more digits than a and b have: units of the last one off",
                float(max(one.units_off for one in rest)),
                2.0,
                "",
                at_most=True,
            ),
            Bar(
                "designs that are not proved stable",
                float(len(unproved)),
                0.0,
                "",
                at_most=True,
                beyond_the_issue=True,
            ),
        ],
        notes=[
            "The paper prints Ki = (a + Kp·b)/b for PI, −0.063 in Kp and one Kd·e(k) too many for "
            "PID; its numbers follow from the polynomials and not from these formulas.",
            f"For {len(vetted) - len(designed)} of {len(vetted)} plants and kinds nothing settles "
            f"within {REQUIREMENT.settling_samples} samples and bears that lateness: refused.",
        ],
        data={
            "printed": [msgspec.to_builtins(one) for one in printed],
            "designs": [msgspec.to_builtins(one) for one in vetted],
        },
    )


def printed_numbers(model: LinearModel, pi: Gains, pid: Gains) -> list[PaperValue]:
    """Return all numbers that the paper prints of its design."""
    low, high = proportional_bounds(model.a, model.b)
    return [
        PaperValue("P: Kp above", "-0.01234", low),
        PaperValue("P: Kp below", "0.02115", high),
        PaperValue("PI: Kp", "-0.0016", pi.proportional),
        PaperValue("PI: Ki", "0.0060", pi.integral),
        PaperValue("PID: Kp", "0.0017761", pid.proportional),
        PaperValue("PID: Ki", "0.0058096", pid.integral),
        PaperValue("PID: Kd", "0.0018417", pid.derivative),
    ]


def _vetted(kind: ControllerType, a: float, b: float) -> RobustnessCheck:
    model = LinearModel(a, b, 0.0)
    placed = find_design(model, kind, REQUIREMENT)
    if placed is None:
        return RobustnessCheck(str(kind), a, None, is_proved=False)
    loops = [closed_loop(a, b, placed.gains, late) for late in range(LATE_SAMPLES + 1)]
    return RobustnessCheck(
        str(kind),
        a,
        list(analyse_loop(model, placed.gains, LATE_SAMPLES).late_radii),
        is_proved=all(roots_within(loop.denominator) for loop in loops),
    )


def _draw(
    loops: dict[ControllerType, ClosedLoop],
    vetted: list[RobustnessCheck],
    target_per_s: float,
    file: Path,
) -> None:
    samples = [float(k) for k in range(DRAWN_SAMPLES)]
    steps = Panel(
        f"A step to {target_per_s:.0f} msg/s",
        "samples",
        "arrival rate, msg/s",
        [
            Line(f"the paper's {kind}", samples, loop.response_per_s(target_per_s, DRAWN_SAMPLES))
            for kind, loop in loops.items()
        ],
        levels={"target": target_per_s},
    )
    designed = [(one.a, one.radii) for one in vetted if one.kind == ControllerType.PI and one.radii]
    radii = Panel(
        "Largest pole of a designed PI loop",
        "a of the plant",
        "distance from 0",
        [
            Line(
                "in time" if late == 0 else f"late by {late}",
                [a for a, _ in designed],
                [by_late[late] for _, by_late in designed],
            )
            for late in range(LATE_SAMPLES + 1)
        ],
        levels={"unstable": 1.0},
    )
    draw_panels([steps, radii], file)
