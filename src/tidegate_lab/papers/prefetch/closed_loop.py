"""Figures 5 to 7: P, PI and PID control with a target of 400 msg/s."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from random import Random
from typing import Self

import msgspec

from tidegate.core.prefetch import ConsumerSample, ControllerKind, PrefetchGoal, PrefetchModel
from tidegate.laws.estimation import IdentifiedModel, LinearRange
from tidegate.laws.prefetch.design import Gains, resample_model, steady_rate_per_s
from tidegate.laws.prefetch.loop import PrefetchRegulator
from tidegate.report import charts
from tidegate.report.charts import ReportTable
from tidegate.simulation.figures import Line, Panel, draw_rows
from tidegate.tuning import TuningGoal
from tidegate.tuning.experiment import (
    ExperimentPhase,
    ExperimentRecord,
    ExperimentSampler,
    TuningRefused,
    excitation,
    identify_samples,
    range_to_excite,
)
from tidegate_lab.bench.compare_report import Bar
from tidegate_lab.papers.prefetch.plan import (
    PAPER_CLOSED_LOOP,
    PREFETCH_MAX,
    BrokerKind,
    MeterTrack,
    PrefetchPlan,
    RateSpread,
    Testbed,
    TestbedConsumer,
    back_after_s,
)
from tidegate_lab.papers.prefetch.scene import process_testbed
from tidegate_lab.papers.prefetch.simulated import SimulatedTestbed
from tidegate_lab.report import Drawing, ExperimentFailed, ExperimentSection, Progress

MEAN_WITHIN = 0.01
OFFSET_WITHIN = 0.05
SETTLED_WITHIN = 0.05
# The limits of the sampled rate's deviation, for the paper's samples and for shorter ones.
DEVIATION_MAX_PER_S, DEVIATION_MAX_SHORT_PER_S = 20.0, 40.0
PAPER_SAMPLE_S = 10.0
LOOP_START = 1
_TARGET = charts.GREY.light


class ControllerRun(msgspec.Struct, frozen=True):
    """The run of one controller."""

    kind: ControllerKind
    gains: str
    # The steady-state rate by theory.
    expected_per_s: float
    rates_per_s: list[float]
    prefetches: list[float]
    settled_after_s: float
    # The rates after the required settling time.
    spread: RateSpread


def closed_loop_section(bench: TestbedRun, folder: Path) -> ExperimentSection:
    """Run the three controllers one after the other."""
    target = bench.plan.target_per_s
    sample_s, settle_s = bench.plan.sample_s, bench.plan.settle_s
    runs = [hold(bench, kind, sample_s=sample_s, settle_s=settle_s) for kind in ControllerKind]
    draw_held(runs, target, sample_s, settle_s, folder / "fig5-7.png")
    by_kind = {run.kind: run for run in runs}
    return ExperimentSection(
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
            ReportTable(
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


def integral_bars(run: ControllerRun, target: float, sample_s: float, settle_s: float) -> list[Bar]:
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


def hold(
    bench: TestbedRun, kind: ControllerKind, *, sample_s: float, settle_s: float
) -> ControllerRun:
    """Run one controller from prefetch 1, and measure it at the target."""
    plan, scene = bench.plan, bench.scene
    goal = bench.goal(kind, sample_s=sample_s, settle_s=settle_s)
    gains = PrefetchRegulator(goal, None, LOOP_START).gains
    model = resample_model(bench.model(), sample_s)
    expected = steady_rate_per_s(model, gains, plan.target_per_s)
    bench.progress(f"{kind}: {gains}; to rest at {expected:.0f} msg/s …")
    with scene.consumer(LOOP_START) as consumer:
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
    track: MeterTrack,
    sample_s: float,
    settle_s: float,
) -> ControllerRun:
    points = track.samples(sample_s)
    rates = [point.rate_per_s for point in points]
    settled = [point.rate_per_s for point in points if point.at_s > settle_s + 0.5 * sample_s]
    spread = RateSpread.of(settled)
    rest = expected_per_s if kind is not ControllerKind.P else spread.mean_per_s
    return ControllerRun(
        kind=kind,
        gains=str(gains),
        expected_per_s=expected_per_s,
        rates_per_s=rates,
        prefetches=[point.prefetch for point in points],
        settled_after_s=back_after_s(rates, rest, sample_s, SETTLED_WITHIN),
        spread=spread,
    )


def _offset_bar(proportional: ControllerRun, target: float) -> Bar:
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
    runs: list[ControllerRun], target: float, sample_s: float, settle_s: float, file: Path
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


# The parts that the prefetch experiments of a run share: testbed, open loop and model.
#
# Each part is made when an experiment first uses it, so that each experiment can run alone.


# Seconds in which the messages in flight from the last level arrive.
FLUSH_S = 0.3
# P control has an offset. With a small overshoot the offset would be so large that the prefetch
# would reach its limit.
PROPORTIONAL_OVERSHOOT = 0.5


class TestbedRun:
    """The testbed of one run and its measured model; use it with `with`."""

    def __init__(
        self,
        engine: BrokerKind,
        plan: PrefetchPlan,
        progress: Progress,
        *,
        is_simulated: bool = False,
    ) -> None:
        self.engine = engine
        self.is_simulated = is_simulated
        self.plan = plan
        self.progress = progress
        self._stack = contextlib.ExitStack()
        self._scene: Testbed | None = None
        self._record: ExperimentRecord | None = None
        self._identified: tuple[LinearRange, IdentifiedModel] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def scene(self) -> Testbed:
        if self._scene is None and self.is_simulated:
            self._scene = SimulatedTestbed(self.engine, self.plan.setting)
        elif self._scene is None:
            self.progress(f"starting {self.engine} …")
            scene = process_testbed(self.engine, self.plan.setting)
            self._scene = self._stack.enter_context(scene)
        return self._scene

    @property
    def wish(self) -> TuningGoal:
        return TuningGoal(
            target_per_s=self.plan.target_per_s,
            settle_s=self.plan.settle_s,
            high=PREFETCH_MAX,
            sample_s=self.plan.sample_s,
            excited_samples=self.plan.excited_samples,
        )

    # The plant

    def open_loop(self) -> ExperimentRecord:
        """Return the rate at every level of the prefetch; measured at the first call."""
        if self._record is None:
            record, plan = ExperimentRecord(), self.plan
            with self.scene.consumer(plan.levels[0]) as consumer:
                for level in plan.levels:
                    consumer.set_prefetch(level)
                    consumer.watch(FLUSH_S)
                    # The meter notes every 0.1 s, so 0.2 s more for a complete last sample.
                    seconds = plan.level_samples * plan.sample_s + 0.2
                    rates = consumer.watch(seconds).rates(plan.sample_s)
                    point = record.add_point(level, rates)
                    self.progress(f"prefetch {level}: {point.rate_per_s:.0f} msg/s")
            self._record = record
        return self._record

    def identified(self) -> tuple[LinearRange, IdentifiedModel]:
        """Return the linear range and the model there, identified as `tidegate tune` does.

        `ExperimentFailed` means that the measurements do not give a model.
        """
        if self._identified is None:
            record, wish = self.open_loop(), self.wish
            with self.scene.consumer(1) as consumer:
                sampling = ExperimentSampler(_Measured(consumer), wish.sample_s, record, _unheard)
                try:
                    line = range_to_excite(sampling, wish)
                    moves = excitation(
                        int(line.low), int(line.high), wish.excited_samples, Random(wish.seed)
                    )
                    self.progress(f"{len(moves)} samples at random prefetches to {line.high:g} …")
                    asyncio.run(_excite(sampling, moves))
                    self._identified = (line, identify_samples(record))
                except TuningRefused as refused:
                    raise ExperimentFailed(f"no model: {refused}") from None
        return self._identified

    def model(self) -> PrefetchModel:
        line, found = self.identified()
        return PrefetchModel(
            a=found.a,
            b=found.b,
            offset_per_s=found.offset_per_s,
            sample_s=self.plan.sample_s,
            low=int(line.low),
            high=int(line.high),
            engine=str(self.engine),
        )

    # The goal

    def goal(
        self,
        kind: ControllerKind = ControllerKind.PI,
        *,
        sample_s: float | None = None,
        settle_s: float | None = None,
    ) -> PrefetchGoal:
        """Return the goal with the identified model.

        It is not adaptive, so that the results belong to one design. None for `sample_s` or
        `settle_s` means the value of the plan.
        """
        is_proportional = kind is ControllerKind.P
        return PrefetchGoal(
            rate_per_s=self.plan.target_per_s,
            settle_s=settle_s or self.plan.settle_s,
            overshoot=PROPORTIONAL_OVERSHOOT if is_proportional else 0.05,
            controller=kind,
            sample_s=sample_s or self.plan.sample_s,
            high=PREFETCH_MAX,
            adaptive=False,
            model=self.model(),
        )


class _Measured:
    """An adapter from a consumer of the testbed to the interface of `tidegate tune`."""

    description = "the consumer of the scene"
    restored_text = "the scene ends with its consumer"
    feeds_itself = False

    def __init__(self, consumer: TestbedConsumer) -> None:
        self._consumer = consumer
        self._prefetch = 0

    async def set_prefetch(self, prefetch: int) -> None:
        if prefetch != self._prefetch:
            self._consumer.set_prefetch(prefetch)
            self._prefetch = prefetch

    async def measure(self, interval_s: float) -> ConsumerSample:
        # The meter notes every 0.1 s, so the actual length of the sample differs a little.
        track = self._consumer.watch(interval_s)
        first, last = track.notes[0], track.notes[-1]
        lasted_s = last.at - first.at
        return ConsumerSample(
            at=last.at,
            interval_s=lasted_s,
            arrived_per_s=(last.delivered - first.delivered) / lasted_s,
            prefetch=float(self._prefetch),
        )

    async def close(self) -> None:
        """Do nothing, because the testbed owns the consumer."""


def _unheard(phase: ExperimentPhase, prefetch: int, rate_per_s: float) -> None:
    """Ignore the progress of single samples."""


async def _excite(sampling: ExperimentSampler, moves: list[tuple[ExperimentPhase, int]]) -> None:
    await sampling.measure_at_rest(ExperimentPhase.SETTLING, moves[0][1])
    for phase, prefetch in moves:
        await sampling.measure(phase, prefetch)


# Figure 6 with samples as long as the paper's: PI control, ten times slower.
#
# The model is that of the other experiments, whose samples have a tenth of the length.
# `laws/prefetch_design.resampled` converts it to the longer samples.


TIMES = 10.0


def long_samples_section(bench: TestbedRun, folder: Path) -> ExperimentSection:
    """Run PI control only, because P and PID have no bar here."""
    plan = bench.plan
    sample_s, settle_s = TIMES * plan.sample_s, TIMES * plan.settle_s
    run = hold(bench, ControllerKind.PI, sample_s=sample_s, settle_s=settle_s)
    draw_held([run], plan.target_per_s, sample_s, settle_s, folder / "fig6.png")
    return ExperimentSection(
        name="fig6",
        title=f"Figure 6: PI with samples of {sample_s:g} s",
        source="Section 3.4, figure 6",
        paper="{:.0f} ± {:.0f} msg/s.".format(*PAPER_CLOSED_LOOP[ControllerKind.PI]),
        ours=f"{run.spread} msg/s over {run.spread.samples} samples.",
        drawings=[
            Drawing(
                "fig6.png",
                "Sampled arrival rate from a start at prefetch 1; what is to the right of the "
                "settling time counts.",
            )
        ],
        bars=integral_bars(run, plan.target_per_s, sample_s, settle_s),
        data=msgspec.to_builtins(run),
    )
