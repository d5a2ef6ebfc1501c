"""A consumer behind a network, as a loop sees it: a window of messages, a round trip, a handler."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from tidegate.core.prefetch import ConsumerSample
from tidegate.laws.prefetch.controller import ControlStep
from tidegate.laws.prefetch.loop import PrefetchRegulator

TICKS = 20


@dataclass
class SteeredConsumer:
    """y(k+1) = a·y(k) + (1−a)·min(u / round trip, handler, supply): whole prefetches at each tick.

    Measured with noise, late, or not at all.
    """

    a: float = 0.1
    round_trip_s: float = 0.0125
    handler_per_s: float = 770.0
    supply_per_s: float = math.inf
    late_samples: int = 0
    # Of the rate, one standard deviation.
    noise: float = 0.0
    lost: float = 0.0
    sample_s: float = 1.0
    # Whether the worker sees what it has, or only the broker looks at it.
    looks_inside: bool = True
    dice: random.Random = field(default_factory=lambda: random.Random(6))
    at: float = 0.0
    rates: list[float] = field(default_factory=lambda: [0.0])
    steps: list[ControlStep] = field(default_factory=list)
    prefetches: list[int] = field(default_factory=list)
    held: float = 0.0

    def run(self, steering: PrefetchRegulator, samples: int) -> list[float]:
        """The true rates of so many samples."""
        first = len(self.rates)
        for _ in range(samples):
            ticks = [steering.tick() for _ in range(TICKS)]
            self.prefetches += ticks
            prefetch = sum(ticks) / TICKS
            wire = prefetch / self.round_trip_s
            reachable = min(wire, self.handler_per_s, self.supply_per_s)
            self.rates.append(self.a * self.rates[-1] + (1.0 - self.a) * reachable)
            self.at += self.sample_s
            is_handler_slowest = self.handler_per_s < min(wire, self.supply_per_s)
            in_flight = self.handler_per_s * self.round_trip_s
            self.held = prefetch - in_flight if is_handler_slowest else 0.0
            self.steps.append(steering.step(self._measured(prefetch)))
        return self.rates[first:]

    def _measured(self, prefetch: float) -> ConsumerSample | None:
        if self.dice.random() < self.lost:
            return None
        rate = self.rates[max(len(self.rates) - 1 - self.late_samples, 0)]
        measured = max(rate * (1.0 + self.dice.gauss(0.0, self.noise)), 0.0)
        return ConsumerSample(
            at=self.at,
            interval_s=self.sample_s,
            arrived_per_s=measured,
            processed_per_s=measured if self.looks_inside else None,
            busy=min(measured / self.handler_per_s, 1.0) if self.looks_inside else None,
            held=self.held if self.looks_inside else None,
            prefetch=prefetch,
            starved=self.supply_per_s < min(prefetch / self.round_trip_s, self.handler_per_s),
        )


def means_of_five(rates: list[float]) -> list[float]:
    """Each over the five samples that end there."""
    return [math.fsum(rates[k - 4 : k + 1]) / 5.0 for k in range(4, len(rates))]


def back_after(rates: list[float], target: float, band: float = 0.05) -> int:
    """Samples until the mean of five is within the band, and stays."""
    last_outside = 4
    for k, mean in enumerate(means_of_five(rates), start=5):
        if abs(mean - target) > band * target:
            last_outside = k
    return last_outside
