"""A consumer with known a and b, in no time at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tidegate.core.prefetch import ConsumerSample


@dataclass
class SimulatedConsumer:
    """y(k+1) = min(a·y(k) + b·u(k) + offset, ceiling) + noise."""

    a: float = 0.2631
    b: float = 59.73
    offset_per_s: float = 0.0
    ceiling_per_s: float = float("inf")
    # How much each further unit is worth less than the one before, as on a busy machine.
    bend: float = 0.0
    # Of every sample, its standard deviation.
    noise_per_s: float = 5.0
    is_starved: Callable[[int], bool] = lambda _: False
    seed: int = 1
    prefetch: int = 10
    description: str = "a simulated consumer"
    restored_text: str = "nothing of a simulated consumer"
    feeds_itself: bool = False
    rate_per_s: float = 0.0
    prefetches: list[int] = field(default_factory=list)
    closed: bool = False

    def __post_init__(self) -> None:
        self._random = Random(self.seed)

    async def set_prefetch(self, prefetch: int) -> None:
        assert prefetch >= 1, "0 means unlimited to RabbitMQ"
        self.prefetch = prefetch

    async def measure(self, interval_s: float) -> ConsumerSample:
        worth = self.prefetch / (1.0 + self.bend * self.prefetch)
        moved = self.a * self.rate_per_s + self.b * worth + self.offset_per_s
        noise = self._random.gauss(0.0, self.noise_per_s)
        self.rate_per_s = max(min(moved, self.ceiling_per_s) + noise, 0.0)
        self.prefetches.append(self.prefetch)
        return ConsumerSample(
            at=len(self.prefetches) * interval_s,
            interval_s=interval_s,
            arrived_per_s=self.rate_per_s,
            prefetch=float(self.prefetch),
            starved=self.is_starved(len(self.prefetches)),
        )

    async def close(self) -> None:
        self.closed = True
