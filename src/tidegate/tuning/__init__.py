"""Experiments that fit a prefetch controller to one consumer, as `tidegate tune` runs them.

This module has the goal: a rate, the behaviour of the loop, and the limits of the experiment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from tidegate.core.errors import InvalidValue
from tidegate.core.prefetch import (
    OVERSHOOT_MAX,
    PREFETCH_MAX,
    ControllerKind,
    PrefetchGoal,
    PrefetchModel,
)

# A line needs at least this many whole prefetches.
LEVELS_MIN = 5
SAMPLE_S_MIN = 0.02
# Samples of the excitation: three quarters are fitted, the rest is held out.
EXCITED_SAMPLES = 80
EXCITED_SAMPLES_MIN = 48


@dataclass(frozen=True)
class TuningGoal:
    """The settings of one tuning. An invalid value raises `InvalidValue` before any measurement."""

    target_per_s: float
    settle_s: float = 30.0
    overshoot: float = 0.05
    kind: ControllerKind = ControllerKind.PI
    low: int = 1
    high: int = 360
    sample_s: float = 1.0
    # Samples of the excitation, in which the prefetch moves at random within the linear range.
    excited_samples: int = EXCITED_SAMPLES
    # The same seed repeats the same sequence of prefetches.
    seed: int = 6

    def __post_init__(self) -> None:
        if not (math.isfinite(self.target_per_s) and self.target_per_s > 0.0):
            raise InvalidValue(
                f"a target of {self.target_per_s:g} messages a second cannot be steered to: give a "
                "rate above 0, such as 400/s, or pause the queue if nothing is to arrive"
            )
        if self.low < 1 or self.high > PREFETCH_MAX:
            raise InvalidValue(
                f"a prefetch from {self.low} to {self.high}: it is at least 1 (0 means unlimited "
                f"to RabbitMQ) and at most {PREFETCH_MAX}"
            )
        if self.high - self.low < LEVELS_MIN - 1:
            raise InvalidValue(
                f"from {self.low} to {self.high} are too few prefetches to see a line: let them "
                f"differ by {LEVELS_MIN - 1} at least"
            )
        if not self.sample_s >= SAMPLE_S_MIN:
            raise InvalidValue(
                f"samples of {self.sample_s:g} s hold too few messages: {SAMPLE_S_MIN:g} s at least"
            )
        if not 0.0 <= self.overshoot <= OVERSHOOT_MAX:
            raise InvalidValue(
                f"an overshoot of {self.overshoot:.0%}: ask for 0% to {OVERSHOOT_MAX:.0%}, as more "
                "is badly damped and swings for long"
            )
        if not self.settle_s >= self.sample_s:
            raise InvalidValue(
                f"a loop that looks every {self.sample_s:g} s cannot settle within "
                f"{self.settle_s:g} s: give more time, or a shorter sample"
            )
        if self.excited_samples < EXCITED_SAMPLES_MIN:
            raise InvalidValue(
                f"{self.excited_samples} samples are too little excitation for a model: "
                f"{EXCITED_SAMPLES_MIN} are needed. Give more time, or a shorter sample"
            )

    @property
    def settling_samples(self) -> int:
        return max(int(self.settle_s / self.sample_s + 1e-9), 1)

    def goal(self, model: PrefetchModel | None = None) -> PrefetchGoal:
        """Return the goal that a queue or a worker with these settings has."""
        return PrefetchGoal(
            rate_per_s=self.target_per_s,
            settle_s=self.settle_s,
            overshoot=self.overshoot,
            controller=self.kind,
            sample_s=self.sample_s,
            low=self.low,
            high=self.high,
            model=model,
        )


class ExperimentOrigin(NamedTuple):
    """The origin of one experiment."""

    # "rabbitmq" or "tidegate".
    engine: str
    queue: str
    # Seconds since 1970.
    made_at: float


# The prefetches of a sweep: each √2 times the previous one, so that a wide range costs little.


RATIO = math.sqrt(2.0)


def sweep_prefetches(low: int, high: int) -> list[int]:
    """Return the prefetches from `low` to `high`, both included."""
    steps = math.ceil(math.log(high / low, RATIO))
    return sorted({min(round(low * RATIO**step), high) for step in range(steps + 1)} | {high})


def sweep_samples(low: int, high: int) -> int:
    """Return the approximate number of samples of a sweep."""
    return 2 * len(sweep_prefetches(low, high))
