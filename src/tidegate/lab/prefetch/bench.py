"""What the experiments of one run share: the scene, its open loop, and the model of it.

Each is made when the first experiment asks for it, so that any of them can be run alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from random import Random
from typing import Self

from tidegate.core.prefetch import ConsumerSample, ControllerKind, PrefetchGoal, PrefetchModel
from tidegate.lab.prefetch.plan import PREFETCH_MAX, Plan
from tidegate.lab.prefetch.scene import scene_on
from tidegate.lab.prefetch.simulated import SimulatedScene
from tidegate.lab.prefetch.stage import Engine, Stage, StagedConsumer
from tidegate.lab.report.experiments import ExperimentFailed, Progress
from tidegate.laws.identification import Identified
from tidegate.laws.linear_range import LinearRange
from tidegate.tuning.excitation import excitation
from tidegate.tuning.procedure import identified_of
from tidegate.tuning.record import Phase, Record
from tidegate.tuning.refusal import TuningRefused
from tidegate.tuning.sampling import Sampling
from tidegate.tuning.sweep import range_to_excite
from tidegate.tuning.wish import Wish

# What is under way from the level before has come by then.
FLUSH_S = 0.3
# P has an offset, and with little overshoot one so large that the prefetch is at its limit.
PROPORTIONAL_OVERSHOOT = 0.5


class Bench:
    """One run's scene and what is known of it; use with `with`."""

    def __init__(
        self, engine: Engine, plan: Plan, progress: Progress, *, is_simulated: bool = False
    ) -> None:
        self.engine = engine
        self.is_simulated = is_simulated
        self.plan = plan
        self.progress = progress
        self._stack = contextlib.ExitStack()
        self._scene: Stage | None = None
        self._record: Record | None = None
        self._identified: tuple[LinearRange, Identified] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def scene(self) -> Stage:
        if self._scene is None and self.is_simulated:
            self._scene = SimulatedScene(self.engine, self.plan.setting)
        elif self._scene is None:
            self.progress(f"starting {self.engine} …")
            scene = scene_on(self.engine, self.plan.setting)
            self._scene = self._stack.enter_context(scene)
        return self._scene

    @property
    def wish(self) -> Wish:
        return Wish(
            target_per_s=self.plan.target_per_s,
            settle_s=self.plan.settle_s,
            high=PREFETCH_MAX,
            sample_s=self.plan.sample_s,
            excited_samples=self.plan.excited_samples,
        )

    # Known of the plant

    def open_loop(self) -> Record:
        """The rate at every level, measured once."""
        if self._record is None:
            record, plan = Record(), self.plan
            with self.scene.consumer(plan.levels[0]) as consumer:
                for level in plan.levels:
                    consumer.set_prefetch(level)
                    consumer.watch(FLUSH_S)
                    # The meter notes every tenth of a second: one more for the last sample.
                    seconds = plan.level_samples * plan.sample_s + 0.2
                    rates = consumer.watch(seconds).rates(plan.sample_s)
                    point = record.add_point(level, rates)
                    self.progress(f"prefetch {level}: {point.rate_per_s:.0f} msg/s")
            self._record = record
        return self._record

    def identified(self) -> tuple[LinearRange, Identified]:
        """Where the rate is a line, and the model there, by `tidegate tune`'s own steps."""
        if self._identified is None:
            record, wish = self.open_loop(), self.wish
            with self.scene.consumer(1) as consumer:
                sampling = Sampling(_Measured(consumer), wish.sample_s, record, _unheard)
                try:
                    line = range_to_excite(sampling, wish)
                    moves = excitation(
                        int(line.low), int(line.high), wish.excited_samples, Random(wish.seed)
                    )
                    self.progress(f"{len(moves)} samples at random prefetches to {line.high:g} …")
                    asyncio.run(_excite(sampling, moves))
                    self._identified = (line, identified_of(record))
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

    # Wanted of it

    def goal(
        self,
        kind: ControllerKind = ControllerKind.PI,
        *,
        sample_s: float | None = None,
        settle_s: float | None = None,
    ) -> PrefetchGoal:
        """The target, by the model; not adaptive, so that figures are those of one design."""
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
    """A consumer of the scene, as an experiment of `tidegate tune` takes it."""

    says = "the consumer of the scene"
    leaves = "the scene ends with its consumer"
    feeds_itself = False

    def __init__(self, consumer: StagedConsumer) -> None:
        self._consumer = consumer
        self._prefetch = 0

    async def set_prefetch(self, prefetch: int) -> None:
        if prefetch != self._prefetch:
            self._consumer.set_prefetch(prefetch)
            self._prefetch = prefetch

    async def measure(self, interval_s: float) -> ConsumerSample:
        # The meter's notes come at every tenth of a second, so a sample has its length nearly.
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
        """It is the scene's."""


def _unheard(phase: Phase, prefetch: int, rate_per_s: float) -> None:
    """Sixty samples need not be told one by one."""


async def _excite(sampling: Sampling, moves: list[tuple[Phase, int]]) -> None:
    await sampling.rest(Phase.SETTLING, moves[0][1])
    for phase, prefetch in moves:
        await sampling.take(phase, prefetch)
