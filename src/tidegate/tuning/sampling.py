"""Samples of a consumer, one after the other, into a record.

A sample during which the queue was empty says what producers do and nothing about the prefetch: it
is left out, and too many of them end the experiment.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tidegate.core.tunable import TunableConsumer
from tidegate.tuning.record import Measured, Phase, Record
from tidegate.tuning.refusal import TuningRefused

# Of all samples so far, and not before so many were taken.
STARVED_MAX = 0.25
STARVED_AFTER = 4
# Two samples that differ by less are taken for the plant at rest.
AGREE = 0.05
SAMPLES_MAX = 6

# Phase, prefetch, rate.
Heard = Callable[[Phase, int, float], None]


class Sampling:
    """Sets a prefetch, measures, remembers."""

    def __init__(
        self,
        consumer: TunableConsumer,
        sample_s: float,
        record: Record,
        heard: Heard,
        samples: int = 0,
    ) -> None:
        self._consumer = consumer
        self._sample_s = sample_s
        self._heard = heard
        self._before_per_s: float | None = None
        # That are planned for the whole experiment.
        self._samples = samples
        self._taken = 0
        self.record = record

    async def take(self, phase: Phase, prefetch: int) -> float:
        """The rate over one sample at this prefetch; NaN if it says nothing."""
        await self._consumer.set_prefetch(prefetch)
        sample = await self._consumer.measure(self._sample_s)
        self._taken += 1
        rate = sample.arrived_per_s
        self._heard(phase, prefetch, rate)
        if sample.starved:
            self.record.starved += 1
            self._before_per_s = None
            self._end_if_starving()
            return math.nan
        self.record.measured.append(Measured(phase, prefetch, rate, self._before_per_s))
        self._before_per_s = rate
        return rate

    async def rest(self, phase: Phase, prefetch: int) -> list[float]:
        """The rates at a prefetch once the plant is at rest there; none if the queue was empty."""
        rates: list[float] = []
        for _ in range(SAMPLES_MAX):
            rate = await self.take(phase, prefetch)
            if math.isnan(rate):
                continue
            rates.append(rate)
            if len(rates) >= 2 and abs(rates[-1] - rates[-2]) <= AGREE * max(rates[-2:]):
                return rates[-2:]
        # Too noisy to agree: all but the first, in which the plant was still on its way.
        return rates[1:] or rates

    def _end_if_starving(self) -> None:
        starved, taken = self.record.starved, self._taken
        if taken >= STARVED_AFTER and starved > STARVED_MAX * taken:
            raise TuningRefused(
                f"the queue was empty in {starved} of {taken} samples: then whoever fills it "
                f"decides the rate, and not the prefetch. {self.enough()}",
                self.record,
            )

    def enough(self) -> str:
        """What to do about it: how many messages should wait before it begins, where they last."""
        if self._consumer.feeds_itself:
            return (
                "The probe feeds it as fast as it can: give its handler the time that yours takes "
                "(--handler-time), have it put smaller messages (--size), or measure while machine "
                "and broker have less to do"
            )
        most = max((one.rate_per_s for one in self.record.measured), default=0.0)
        needed = most * self._sample_s * self._samples
        told = f"{float(f'{needed:.2g}'):,.0f}" if needed >= 1000.0 else "some thousand"
        return (
            f"Let {told} messages wait in it first, or measure with a probe that feeds itself "
            "(--probe, and no --worker)"
        )
