"""Disturbances, the paper's future work: bursts, slow handlers, delays, bad measurements.

One consumer runs under PI control from beginning to end. Before each disturbance the loop has
settled. The experiment measures how long the mean of five samples takes to return to the target and
to stay there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import msgspec

from tidegate.core.prefetch import PrefetchGoal
from tidegate.report.charts import ReportTable
from tidegate.simulation.figures import Line, Panel, draw_grid
from tidegate_lab.bench.compare_report import Bar
from tidegate_lab.papers.prefetch.closed_loop import TestbedRun
from tidegate_lab.papers.prefetch.consumer_process import MeasurementNoise
from tidegate_lab.papers.prefetch.plan import (
    MEAN_OF,
    BrokerKind,
    MeterTrack,
    Testbed,
    TestbedConsumer,
    back_after_s,
)
from tidegate_lab.report import Drawing, ExperimentSection

BACK_WITHIN = 0.05
# The burst: publishers first offer SCARCE times the target, then BURST times their usual rate for
# BURST_S seconds.
SCARCE, BURST, BURST_S = 0.5, 2.0, 2.0
# The step of the target while measurements are disturbed, as a fraction of the target.
STEP = 0.6
NOISE = 0.1
# The rate of the handler while it is saturated, as a fraction of the target.
SATURATED = 0.5


class DisturbanceResult(msgspec.Struct, frozen=True):
    """One disturbance and its result."""

    name: str
    what: str
    # Samples from the start of the disturbance on.
    rates_per_s: list[float]
    back_after_s: float
    before_per_s: float
    last_per_s: float


class DisturbanceTrial:
    """The testbed and the consumer on which the disturbances act.

    Each disturbance is a method that returns the time from which on the recovery counts.
    """

    def __init__(self, bench: TestbedRun, scene: Testbed, consumer: TestbedConsumer) -> None:
        self.bench = bench
        self.scene = scene
        self.consumer = consumer
        plan = bench.plan
        self.target_per_s = plan.target_per_s
        self.sample_s, self.settle_s = plan.disturbed_sample_s, plan.disturbed_settle_s
        self.goal: PrefetchGoal = bench.goal(sample_s=self.sample_s, settle_s=self.settle_s)

    def steer(self, times: float = 1.0) -> None:
        """Control the consumer with `times` the target."""
        rate = times * self.target_per_s
        self.scene.steer(self.consumer, msgspec.structs.replace(self.goal, rate_per_s=rate))

    def settle(self) -> float:
        """Watch for the settling time and return the mean rate of the last five samples."""
        rates = self.consumer.watch(self.settle_s + 0.2).rates(self.sample_s)
        return fmean(rates[-MEAN_OF:])

    # Disturbances

    def burst(self) -> float:
        """Let the queue run empty, then publish a burst."""
        self.scene.publish(SCARCE * self.target_per_s / self.scene.setting.offered_per_s)
        self.scene.purge()
        self.consumer.watch(self.settle_s / 2)
        began_at = self.scene.now()
        self.scene.publish(BURST)
        self.consumer.watch(min(BURST_S, self.settle_s / 5))
        self.scene.publish(1.0)
        return began_at

    def slow_handler(self) -> float:
        self.consumer.set_handler(2.0 * self.scene.setting.handler_s)
        return self.scene.now()

    def quick_handler(self) -> float:
        self.consumer.set_handler(self.scene.setting.handler_s)
        return self.scene.now()

    def long_way(self) -> float:
        self.scene.network.set_delay(2.0 * self.scene.setting.delay_s)
        return self.scene.now()

    def short_way(self) -> float:
        self.scene.network.set_delay(self.scene.setting.delay_s)
        return self.scene.now()

    def saturation(self) -> float:
        """Make the target unreachable for a while, so that an integral could wind up."""
        self.consumer.set_handler(1.0 / (SATURATED * self.target_per_s))
        self.consumer.watch(self.bench.plan.saturated_s)
        return self.quick_handler()

    def blurred(self, blur: MeasurementNoise) -> float:
        """Make a step of the target with disturbed measurements."""
        self.consumer.blur(blur)
        self.steer(STEP)
        self.consumer.watch(self.settle_s / 2)
        self.steer()
        return self.scene.now()


_Do = Callable[[DisturbanceTrial], float]

PLANT: dict[str, tuple[str, _Do]] = {
    "burst": ("a queue that ran dry, then a burst of publishers", DisturbanceTrial.burst),
    "slow handler": ("the handler suddenly twice as slow", DisturbanceTrial.slow_handler),
    "quick handler": ("the handler as quick as before", DisturbanceTrial.quick_handler),
    "long way": ("the round trip doubled", DisturbanceTrial.long_way),
    "short way": ("the round trip as before", DisturbanceTrial.short_way),
    "saturation": ("a handler that could not keep up for a while", DisturbanceTrial.saturation),
}
MEASUREMENTS: dict[str, tuple[str, _Do]] = {
    "lost": (
        "one measurement in five lost, and a step of the target",
        lambda trial: trial.blurred(MeasurementNoise(lost=0.2)),
    ),
    "noise": (
        f"measurements with {NOISE:.0%} of noise, and a step of the target",
        lambda trial: trial.blurred(MeasurementNoise(noise=NOISE)),
    ),
    "late by 1": (
        "measurements late by one sample, and a step of the target",
        lambda trial: trial.blurred(MeasurementNoise(late_samples=1)),
    ),
    "late by 2": (
        "measurements late by two samples, and a step of the target",
        lambda trial: trial.blurred(MeasurementNoise(late_samples=2)),
    ),
}


def disturbances_section(bench: TestbedRun, folder: Path) -> ExperimentSection:
    """Run all disturbances one after the other on one consumer."""
    scene = bench.scene
    # The node measures where it delivers, so no measurement can be lost on Tidegate.
    disturbances = PLANT if scene.engine is BrokerKind.TIDEGATE else PLANT | MEASUREMENTS
    found: list[DisturbanceResult] = []
    # The model first, because its measurement needs the queue for a single consumer.
    bench.model()
    with scene.consumer(1) as consumer:
        trial = DisturbanceTrial(bench, scene, consumer)
        try:
            trial.steer()
            trial.settle()
            found = [_disturb(trial, name, *one) for name, one in disturbances.items()]
        finally:
            scene.steer_no_more()
            scene.network.set_delay(scene.setting.delay_s)
            scene.publish(1.0)
    _draw(found, trial, folder / "disturbances.png")
    return _section(bench, found, trial)


def _disturb(trial: DisturbanceTrial, name: str, what: str, do: _Do) -> DisturbanceResult:
    trial.bench.progress(f"{what} …")
    trial.consumer.blur(MeasurementNoise())
    # The rate before the disturbance shows whether the last one has left an effect.
    before = fmean(trial.consumer.watch(MEAN_OF * trial.sample_s + 0.2).rates(trial.sample_s))
    began_at = do(trial)
    already_s = trial.scene.now() - began_at
    wanted_s = trial.settle_s + MEAN_OF * trial.sample_s + 0.2
    trial.consumer.watch(max(wanted_s - already_s, 0.0))
    track: MeterTrack = trial.consumer.track.since(began_at)
    rates = track.rates(trial.sample_s)
    back_s = back_after_s(rates, trial.target_per_s, trial.sample_s, BACK_WITHIN)
    last = fmean(rates[-MEAN_OF:])
    trial.bench.progress(f"… back after {back_s:.1f} s, at {last:.0f} msg/s")
    return DisturbanceResult(name, what, rates, back_s, before, last)


def _section(
    bench: TestbedRun, found: list[DisturbanceResult], trial: DisturbanceTrial
) -> ExperimentSection:
    plan = bench.plan
    worst = max(found, key=lambda one: one.back_after_s)
    return ExperimentSection(
        name="disturbances",
        title="Disturbances",
        source="Section 5, future work: disturbances, measurement noise and delay",
        paper="Left for later.",
        ours=(
            f"The longest way back to within {BACK_WITHIN:.0%} took {worst.back_after_s:.1f} s "
            f"({worst.what}); {trial.settle_s:g} s were designed for."
        ),
        drawings=[
            Drawing(
                "disturbances.png",
                f"Sampled arrival rate from the moment of each disturbance on; samples of "
                f"{trial.sample_s:g} s.",
            )
        ],
        tables=[
            ReportTable(
                f"Mean of five samples of {trial.sample_s:g} s back within {BACK_WITHIN:.0%} of "
                f"{trial.target_per_s:.0f} msg/s",
                ("disturbance", "back after, s", "before, msg/s", "at the end, msg/s"),
                [
                    (
                        one.what,
                        f"{one.back_after_s:.1f}",
                        f"{one.before_per_s:.0f}",
                        f"{one.last_per_s:.0f}",
                    )
                    for one in found
                ],
            )
        ],
        bars=[
            Bar(f"{one.what}: back", one.back_after_s, trial.settle_s, "s", at_most=True)
            for one in found
        ],
        notes=[
            f"The target was out of reach for {plan.saturated_s:g} s before it counts how long "
            "the way back takes.",
            *(
                ["The node measures at its own credit: no measurement can be lost or late there."]
                if bench.engine is BrokerKind.TIDEGATE
                else []
            ),
        ],
        data={one.name: msgspec.to_builtins(one) for one in found},
    )


def _draw(found: list[DisturbanceResult], trial: DisturbanceTrial, file: Path) -> None:
    sample_s = trial.sample_s
    panels = [
        Panel(
            f"{one.name}: back after {one.back_after_s:.1f} s",
            "seconds",
            "msg/s",
            [
                Line(
                    "sampled",
                    [sample_s * (k + 1) for k in range(len(one.rates_per_s))],
                    one.rates_per_s,
                )
            ],
            levels={"target": trial.target_per_s},
        )
        for one in found
    ]
    draw_grid(panels, file)
