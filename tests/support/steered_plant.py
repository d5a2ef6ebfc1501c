"""A consumer that is steered: a known plant, a controller, and what goes wrong between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tidegate.laws.prefetch.controller import Controller, ControlSample, ControlStep

SAMPLE_S = 1.0


@dataclass
class SteeredPlant:
    """y(k+1) = min(a·y(k) + b·u(k) + offset, ceiling), measured with noise, late, or not at all."""

    a: float
    b: float
    prefetch: float
    offset_per_s: float = 0.0
    ceiling_per_s: float = float("inf")
    late_samples: int = 0
    # Of sample k: what the sensor adds, and whether it says nothing.
    noise: Callable[[int], float] = lambda _: 0.0
    is_lost: Callable[[int], bool] = lambda _: False
    rates: list[float] = field(default_factory=list)
    steps: list[ControlStep] = field(default_factory=list)

    def __post_init__(self) -> None:
        # At rest.
        rest = (self.b * self.prefetch + self.offset_per_s) / (1.0 - self.a)
        self.rates.append(min(rest, self.ceiling_per_s))

    @property
    def rate(self) -> float:
        return self.rates[-1]

    def run(self, controller: Controller, target_per_s: float, samples: int) -> list[float]:
        """The rates of so many samples, the first one being that at which the target holds."""
        first = len(self.rates) - 1
        for _ in range(samples):
            k = len(self.rates) - 1
            measured_k = max(k - self.late_samples, 0)
            measured = self.rates[measured_k] + self.noise(k)
            step = controller.step(
                ControlSample(k * SAMPLE_S, None if self.is_lost(k) else measured, target_per_s)
            )
            self.steps.append(step)
            self.prefetch = step.output
            moved = self.a * self.rates[-1] + self.b * self.prefetch + self.offset_per_s
            self.rates.append(min(moved, self.ceiling_per_s))
        return self.rates[first:]


def settled_after(rates: Sequence[float], target: float, band: float) -> int:
    """The first sample from which on all rates are within the band."""
    last_outside = -1
    for k, rate in enumerate(rates):
        if abs(rate - target) > band:
            last_outside = k
    return last_outside + 1
