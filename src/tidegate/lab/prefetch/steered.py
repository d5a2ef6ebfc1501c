"""The prefetch control loop of a worker, with measurements that can be lost, noisy or late."""

from __future__ import annotations

import msgspec

from tidegate.client.engine import EngineSubscription
from tidegate.client.handling import Handling
from tidegate.client.steered_prefetch import PrefetchStep, SteeredPrefetch
from tidegate.core.prefetch import ConsumerSample, PrefetchGoal
from tidegate.lab.prefetch.blurred import Blur, BlurredSensor


class Step(msgspec.Struct, frozen=True):
    """The measurement and the action of a control loop at one sample."""

    at: float
    # The measured rate; None if the measurement was lost.
    rate_per_s: float | None
    level: float
    mode: str
    saturated: str
    notes: list[str]


class BlurredLoop(SteeredPrefetch):
    """The product's control loop of one subscription, with disturbed measurements."""

    def __init__(
        self,
        queue: str,
        goal: PrefetchGoal,
        start: int,
        handling: Handling,
        blur: Blur,
    ) -> None:
        super().__init__(queue, goal, start=start, handling=handling, on_step=self._note)
        self._sensor = BlurredSensor(blur)
        self._steps: list[Step] = []

    def blur(self, blur: Blur) -> None:
        self._sensor.blur = blur

    def taken(self) -> list[Step]:
        """Return the steps since the last call."""
        steps, self._steps = self._steps, []
        return steps

    async def sense(self, subscription: EngineSubscription) -> ConsumerSample | None:
        sample = await super().sense(subscription)
        return None if sample is None else self._sensor.seen(sample)

    def _note(self, told: PrefetchStep) -> None:
        step = told.step
        self._steps.append(
            Step(
                at=self._clock(),
                rate_per_s=None if told.sample is None else told.sample.arrived_per_s,
                level=step.level,
                mode=step.mode.value,
                saturated=step.saturated.value,
                notes=list(step.notes),
            )
        )
