"""Figures 5 to 7: P, PI and PID control with a target of 400 msg/s."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tidegate.core.prefetch import ControllerKind
from tidegate.lab.bench.bars import Bar
from tidegate.lab.prefetch.bench import Bench
from tidegate.lab.prefetch.plan import PAPER_CLOSED_LOOP
from tidegate.lab.prefetch.track import Spread, Track, back_after_s
from tidegate.lab.report.figures import Line, Panel, draw_rows
from tidegate.lab.report.section import Drawing, Section
from tidegate.laws.pole_placement import Gains, steady_rate_per_s
from tidegate.laws.prefetch_design import resampled
from tidegate.laws.prefetch_steering import PrefetchSteering
from tidegate.report import palette
from tidegate.report.chart import Table

MEAN_WITHIN = 0.01
OFFSET_WITHIN = 0.05
SETTLED_WITHIN = 0.05
# The limits of the sampled rate's deviation, for the paper's samples and for shorter ones.
DEVIATION_MAX_PER_S, DEVIATION_MAX_SHORT_PER_S = 20.0, 40.0
PAPER_SAMPLE_S = 10.0
START = 1
_TARGET = palette.GREY.light


class Held(msgspec.Struct, frozen=True):
    """The run of one controller."""

    kind: ControllerKind
    gains: str
    # The steady-state rate by theory.
    expected_per_s: float
    rates_per_s: list[float]
    prefetches: list[float]
    settled_after_s: float
    # The rates after the required settling time.
    spread: Spread


def closed_loop_section(bench: Bench, folder: Path) -> Section:
    """Run the three controllers one after the other."""
    target = bench.plan.target_per_s
    sample_s, settle_s = bench.plan.sample_s, bench.plan.settle_s
    runs = [hold(bench, kind, sample_s=sample_s, settle_s=settle_s) for kind in ControllerKind]
    draw_held(runs, target, sample_s, settle_s, folder / "fig5-7.png")
    by_kind = {run.kind: run for run in runs}
    return Section(
        name="fig5",
        title=f"Figures 5 to 7: closed loop at {target:.0f} msg/s",
        source=f"Section 3.4, figures 5 to 7; samples of {sample_s:g} s (the paper: 10 s)",
        paper="P 414 ± 216, PI 397 ± 95, PID 386 ± 196 msg/s.",
        ours=", ".join(f"{run.kind} {run.spread}" for run in runs) + " msg/s.",
        drawings=[
            Drawing(
                "fig5-7.png",
                "Sampled arrival rate from a start at prefetch 1; the settling time that was asked "
                "for is marked, and what is to the right of it counts.",
            )
        ],
        tables=[
            Table(
                f"Mean and standard deviation of {bench.plan.watched_samples} samples of "
                f"{sample_s:g} s after settling",
                ("", "paper", "ours", "by theory", "settled after", "gains"),
                [
                    (
                        str(run.kind),
                        "{:.0f} ± {:.0f}".format(*PAPER_CLOSED_LOOP[run.kind]),
                        str(run.spread),
                        f"{run.expected_per_s:.0f}",
                        f"{run.settled_after_s:.0f} s",
                        run.gains,
                    )
                    for run in runs
                ],
            )
        ],
        bars=[
            *integral_bars(by_kind[ControllerKind.PI], target, sample_s, settle_s),
            _offset_bar(by_kind[ControllerKind.P], target),
        ],
        notes=[
            "P has no integral and comes to rest below its target, by the model at "
            "Kp·b/(1 − a + Kp·b) of it. The paper's P is above the target on average: its prefetch "
            "was a whole number and swung.",
            "Settled: the mean of five samples within 5 % of where it comes to rest, and the next "
            "four such means, too.",
        ],
        data=msgspec.to_builtins({str(run.kind): run for run in runs}),
    )


def integral_bars(run: Held, target: float, sample_s: float, settle_s: float) -> list[Bar]:
    """Return the bars of PI control."""
    return [
        Bar(
            f"PI: mean within {MEAN_WITHIN:.0%} of the target",
            100.0 * abs(run.spread.mean_per_s / target - 1.0),
            100.0 * MEAN_WITHIN,
            "%",
            at_most=True,
        ),
        Bar(
            f"PI: standard deviation with samples of {sample_s:g} s",
            run.spread.deviation_per_s,
            DEVIATION_MAX_PER_S if sample_s >= PAPER_SAMPLE_S else DEVIATION_MAX_SHORT_PER_S,
            "msg/s",
            at_most=True,
        ),
        Bar("PI: settled", run.settled_after_s, settle_s, "s", at_most=True),
    ]


def hold(bench: Bench, kind: ControllerKind, *, sample_s: float, settle_s: float) -> Held:
    """Run one controller from prefetch 1, and measure it at the target."""
    plan, scene = bench.plan, bench.scene
    goal = bench.goal(kind, sample_s=sample_s, settle_s=settle_s)
    gains = PrefetchSteering(goal, None, START).gains
    model = resampled(bench.model(), sample_s)
    expected = steady_rate_per_s(model, gains, plan.target_per_s)
    bench.progress(f"{kind}: {gains}; to rest at {expected:.0f} msg/s …")
    with scene.consumer(START) as consumer:
        scene.steer(consumer, goal)
        try:
            # 0.3 s more, because the meter's last note may come 0.1 s before the end.
            track = consumer.watch(settle_s + plan.watched_samples * sample_s + 0.3)
        finally:
            scene.steer_no_more()
    return held_of(kind, gains, expected, track, sample_s, settle_s)


def held_of(
    kind: ControllerKind,
    gains: Gains,
    expected_per_s: float,
    track: Track,
    sample_s: float,
    settle_s: float,
) -> Held:
    points = track.samples(sample_s)
    rates = [point.rate_per_s for point in points]
    settled = [point.rate_per_s for point in points if point.at_s > settle_s + 0.5 * sample_s]
    spread = Spread.of(settled)
    rest = expected_per_s if kind is not ControllerKind.P else spread.mean_per_s
    return Held(
        kind=kind,
        gains=str(gains),
        expected_per_s=expected_per_s,
        rates_per_s=rates,
        prefetches=[point.prefetch for point in points],
        settled_after_s=back_after_s(rates, rest, sample_s, SETTLED_WITHIN),
        spread=spread,
    )


def _offset_bar(proportional: Held, target: float) -> Bar:
    predicted = target - proportional.expected_per_s
    found = target - proportional.spread.mean_per_s
    return Bar(
        f"P: offset against the {predicted:.0f} msg/s that theory predicts",
        100.0 * abs(found / predicted - 1.0),
        100.0 * OFFSET_WITHIN,
        "%",
        at_most=True,
    )


def draw_held(
    runs: list[Held], target: float, sample_s: float, settle_s: float, file: Path
) -> None:
    panels = []
    for run in runs:
        seconds = [sample_s * (k + 1) for k in range(len(run.rates_per_s))]
        ends = [seconds[0], seconds[-1]]
        lines = [
            Line("sampled", seconds, run.rates_per_s),
            Line("target", ends, [target] * 2, dashed=True, colour=_TARGET),
        ]
        if run.kind is ControllerKind.P:
            lines.append(Line("by theory", ends, [run.expected_per_s] * 2, dashed=True))
        panels.append(
            Panel(
                "{}: {} msg/s (the paper {:.0f} ± {:.0f})".format(
                    run.kind, run.spread, *PAPER_CLOSED_LOOP[run.kind]
                ),
                "seconds",
                "arrival rate, msg/s",
                lines,
                moments={"to settle": settle_s},
            )
        )
    draw_rows(panels, file, same_scale=True)
