"""Sampling: measures a consumer sample by sample into a record.

A sample during which the queue was empty shows the rate of the producers and not the effect of
the prefetch. It is left out, and too many of them end the experiment.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tidegate.core.tunable import TunableConsumer
from tidegate.tuning.record import Measured, Phase, Record
from tidegate.tuning.refusal import TuningRefused

# Largest fraction of starved samples, and the number of samples before it is checked.
STARVED_MAX = 0.25
STARVED_AFTER = 4
# Two samples that differ by less than this fraction count as steady state.
AGREE = 0.05
SAMPLES_MAX = 6

# Called with phase, prefetch and rate of each sample.
Heard = Callable[[Phase, int, float], None]


class Sampling:
    """Sets a prefetch, measures one sample, and records it."""

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
        # Number of samples planned for the whole experiment.
        self._samples = samples
        self._taken = 0
        self.record = record

    async def take(self, phase: Phase, prefetch: int) -> float:
        """Measure one sample at this prefetch, and return its rate, or NaN if the queue was empty.

        Raises `TuningRefused` if too many samples were starved.
        """
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
        """Return the steady-state rates at a prefetch.

        The list is empty if the queue was empty in every sample.
        """
        rates: list[float] = []
        for _ in range(SAMPLES_MAX):
            rate = await self.take(phase, prefetch)
            if math.isnan(rate):
                continue
            rates.append(rate)
            if len(rates) >= 2 and abs(rates[-1] - rates[-2]) <= AGREE * max(rates[-2:]):
                return rates[-2:]
        # The samples never agree because of noise. Leave out the first one, in which the plant
        # still moved.
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
        """Return advice for the user on how to keep the queue filled."""
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
