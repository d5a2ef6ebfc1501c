"""The parts that the prefetch experiments of a run share: testbed, open loop and model.

Each part is made when an experiment first uses it, so that each experiment can run alone.
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

# Seconds in which the messages in flight from the last level arrive.
FLUSH_S = 0.3
# P control has an offset. With a small overshoot the offset would be so large that the prefetch
# would reach its limit.
PROPORTIONAL_OVERSHOOT = 0.5


class Bench:
    """The testbed of one run and its measured model; use it with `with`."""

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

    # The plant

    def open_loop(self) -> Record:
        """Return the rate at every level of the prefetch; measured at the first call."""
        if self._record is None:
            record, plan = Record(), self.plan
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

    def identified(self) -> tuple[LinearRange, Identified]:
        """Return the linear range and the model there, identified as `tidegate tune` does.

        `ExperimentFailed` means that the measurements do not give a model.
        """
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


def _unheard(phase: Phase, prefetch: int, rate_per_s: float) -> None:
    """Ignore the progress of single samples."""


async def _excite(sampling: Sampling, moves: list[tuple[Phase, int]]) -> None:
    await sampling.rest(Phase.SETTLING, moves[0][1])
    for phase, prefetch in moves:
        await sampling.take(phase, prefetch)
