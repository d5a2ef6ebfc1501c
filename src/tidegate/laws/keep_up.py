"""The goal "keep up": messages arrive as fast as the handler can process them, and few wait.

    μ = processed / busy                   what the handler could process if it were always busy
    target = μ + b/(1−a) · (h* − h)        h messages wait unprocessed in the consumer, h* wanted

Arrivals cannot stay above μ. Beyond the knee more prefetch only means more held messages, which no
other consumer can reach, and the rate gives no information. But each further unit of prefetch adds
one held message, and a unit is worth b/(1−a) msg/s. With the second term, error and prefetch have
the same relation on both sides of the knee, so gains designed below it are right beyond it too. The
loop comes to rest where arrivals are μ and h* messages wait.

    h* = max(1, f · in flight)             unless the goal sets h*
    f ← f + 2 · (idle − ¾ %)               by how long the handler was idle, ½ ≤ f ≤ 2

One waiting message would suffice if messages arrived one by one. They do not: messages acknowledged
together arrive together, up to a quarter of the prefetch, and may be late by any part of a round
trip. This lateness is unknown, but the idle time of the handler is measured. So an integral adjusts
the stock: it grows while the handler idles although the stock is present, and shrinks otherwise. On
average the handler is then idle for less than one per cent of the time.

The stock is at most twice the messages in flight, which lasts for two round trips. A handler that
still idles does so for another reason. A node's estimate of held messages may be off by a fraction
of the messages in flight. With a fixed h* a loop below the knee could take this error for a stock
and stay there.
"""

from __future__ import annotations

import math

from tidegate.laws.least_squares import Model

# Messages wanted in stock if the goal does not set them: the minimum, and per message in flight.
HELD_MIN = 1.0
EACH_MIN, EACH_FIRST, EACH_MAX = 0.5, 1.0, 2.0
# Fraction of the time that a handler may be idle.
IDLE_MAX = 0.0075
# Growth of f in a sample in which the handler was idle all the time.
STOCKED_UP = 2.0
# A smaller busy fraction does not show the handler's capacity.
BUSY_MIN = 0.05
# How far the target is below μ if held messages are not known, so that none accumulate.
SLACK = 0.05


class KeepUp:
    """Computes the target rate of each sample."""

    def __init__(
        self, model: Model, *, held: float | None = None, memory_samples: float = 5.0
    ) -> None:
        """Create a target for this model.

        `held` messages may wait; `None` adapts it to those in flight.
        """
        if not (abs(model.a) < 1.0 and model.b > 0.0):
            raise ValueError(f"a = {model.a}, b = {model.b}: |a| < 1 and b > 0 are needed")
        if not ((held is None or held >= 0.0) and memory_samples >= 1.0):
            raise ValueError(
                f"{held} messages held and a memory of {memory_samples} samples: at least 0 and 1"
            )
        self.retune(model)
        self._held = held
        self._forget = 1.0 / memory_samples
        self._capacity_per_s: float | None = None
        self._held_for_each = EACH_FIRST

    def retune(self, model: Model) -> None:
        """Use the worth of a unit, and so of a held message, of another model."""
        self._worth_per_s = float(model.b / (1.0 - model.a))

    @property
    def capacity_per_s(self) -> float | None:
        """μ in messages per second. `None` means that the handler has not been measured at work."""
        return self._capacity_per_s

    def held_wanted(self, in_flight: float) -> float:
        """Return h* for this number of messages in flight or in process."""
        return max(HELD_MIN, self._held_for_each * in_flight) if self._held is None else self._held

    def target_per_s(
        self,
        processed_per_s: float,
        busy: float,
        held: float | None = None,
        in_flight: float = 0.0,
    ) -> float:
        """Return the target rate, or NaN while nothing is known.

        `busy` is the fraction of the time in which the handler worked, from 0 to 1.
        """
        usable = math.isfinite(processed_per_s) and processed_per_s > 0.0 and busy >= BUSY_MIN
        if usable:
            capacity = processed_per_s / min(busy, 1.0)
            known = self._capacity_per_s
            self._capacity_per_s = (
                capacity if known is None else known + self._forget * (capacity - known)
            )
        if self._capacity_per_s is None:
            return math.nan
        if held is None or not math.isfinite(held):
            return (1.0 - SLACK) * self._capacity_per_s
        # Until the stock has built up, an idle handler does not show that h* is too small.
        if usable and held >= 0.5 * self.held_wanted(in_flight):
            self._stock_up(1.0 - busy)
        return self._capacity_per_s + self._worth_per_s * (self.held_wanted(in_flight) - held)

    def _stock_up(self, idle: float) -> None:
        """Increase the stock while the handler idles, and reduce it while it does not."""
        self._held_for_each += STOCKED_UP * (idle - IDLE_MAX)
        self._held_for_each = min(max(self._held_for_each, EACH_MIN), EACH_MAX)
