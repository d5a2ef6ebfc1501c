"""The goal "keep up": what the handler can process arrives, and hardly anything waits in a buffer.

    μ = processed / busy                   what the handler could process if it were always busy
    target = μ + b/(1−a) · (h* − h)        h messages wait unprocessed in the consumer, h* wanted

Arrivals cannot stay above μ: beyond the knee more prefetch only means more messages held, where no
other consumer can reach them, and the rate says nothing any more. But what is held grows by one
with each unit of prefetch, and a unit is worth b/(1−a) msg/s. With it, error and prefetch keep the
same relation on both sides of the knee, so the gains designed below it are right beyond it, too.
The loop comes to rest where arrivals are μ and h* messages wait.

    h* = max(1, f · in flight)             unless somebody says how many
    f ← f + 2 · (idle − ¾ %)               by how long the handler was idle, ½ ≤ f ≤ 2

One that waits is enough for messages that come one by one. They do not: what is acknowledged
together comes together, up to a quarter of the prefetch, and what is late is late by any part of a
round trip. How late nobody knows, but whether the handler ran dry is measured: the stock grows
while it does though the stock is there, and shrinks while it does not, by an integral, so that on
average it is idle for less than one per cent of the time, however seldom and long. Twice what is in
flight lasts for two round trips; who is idle all the same is so for another reason. And what a node
thinks is held may be off by a part of what is away: with a fixed h* a loop below the knee would
take that error for a stock, and rest on it.
"""

from __future__ import annotations

import math

from tidegate.laws.least_squares import Model

# Messages wanted at hand, where nobody says how many: at least, and for each that is in flight.
HELD_MIN = 1.0
EACH_MIN, EACH_FIRST, EACH_MAX = 0.5, 1.0, 2.0
# The part of its time that a handler may be idle.
IDLE_MAX = 0.0075
# How much f grows in a sample in which it was idle all the time.
STOCKED_UP = 2.0
# Less of the time busy says nothing of the handler.
BUSY_MIN = 0.05
# Where held messages are not known: how far below μ the goal lies, so that none pile up.
SLACK = 0.05


class KeepUp:
    """Gives the target of each sample."""

    def __init__(
        self, model: Model, *, held: float | None = None, memory_samples: float = 5.0
    ) -> None:
        """`held` messages may wait; None: by how many are in flight."""
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
        """The plant answers otherwise now: a held message is worth as much."""
        self._worth_per_s = float(model.b / (1.0 - model.a))

    @property
    def capacity_per_s(self) -> float | None:
        """μ; None: the handler was never seen at work."""
        return self._capacity_per_s

    def held_wanted(self, in_flight: float) -> float:
        """h*, where so many are on their way or at work."""
        return max(HELD_MIN, self._held_for_each * in_flight) if self._held is None else self._held

    def target_per_s(
        self,
        processed_per_s: float,
        busy: float,
        held: float | None = None,
        in_flight: float = 0.0,
    ) -> float:
        """The goal now; NaN while nothing is known. `busy` is the part of the time, 0 to 1."""
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
        # While the stock is not there yet, a handler that runs dry says nothing of its size.
        if usable and held >= 0.5 * self.held_wanted(in_flight):
            self._stock_up(1.0 - busy)
        return self._capacity_per_s + self._worth_per_s * (self.held_wanted(in_flight) - held)

    def _stock_up(self, idle: float) -> None:
        """More at hand while the handler runs dry, less while it does not."""
        self._held_for_each += STOCKED_UP * (idle - IDLE_MAX)
        self._held_for_each = min(max(self._held_for_each, EACH_MIN), EACH_MAX)
