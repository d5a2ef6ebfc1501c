"""What an experiment has measured: every sample, and the open-loop curve that they make."""

from __future__ import annotations

import enum
from statistics import fmean, median, pvariance

import msgspec

from tidegate.laws.linear_range import Level

# What is beyond this of the ceiling counts as all of it.
NEARLY_ALL = 0.95
# On a line, no prefetch of a sweep but the largest gives so much of the most.
ABOUT_AS_MUCH = 0.8


class Phase(enum.StrEnum):
    """What a sample was taken for."""

    SWEEP = "sweep"
    # On the way from one part to the next, or within a range that turned out to be no line.
    SETTLING = "settling"
    FIT = "fit"
    HELD_OUT = "held-out"


class Measured(msgspec.Struct, frozen=True):
    """y(k+1) at the prefetch u(k), and y(k) before it."""

    phase: Phase
    prefetch: int
    rate_per_s: float
    # None: nothing that could be used was measured just before.
    before_per_s: float | None


class OpenLoopPoint(msgspec.Struct, frozen=True):
    """At one prefetch of the sweep."""

    prefetch: int
    rate_per_s: float
    deviation_per_s: float
    samples: int


class Record(msgspec.Struct):
    """Samples in the order of time."""

    measured: list[Measured] = []
    open_loop: list[OpenLoopPoint] = []
    # Samples during which the queue had nothing to deliver.
    starved: int = 0

    def of(self, *phases: Phase) -> list[Measured]:
        return [one for one in self.measured if one.phase in phases]

    def set_aside(self, *phases: Phase) -> list[Measured]:
        """They are no longer of that phase: a later round is. As it was before."""
        before = self.measured
        self.measured = [
            msgspec.structs.replace(one, phase=Phase.SETTLING) if one.phase in phases else one
            for one in before
        ]
        return before

    def add_point(self, prefetch: int, rates_per_s: list[float]) -> OpenLoopPoint:
        point = OpenLoopPoint(
            prefetch, fmean(rates_per_s), pvariance(rates_per_s) ** 0.5, len(rates_per_s)
        )
        self.open_loop.append(point)
        self.open_loop.sort(key=lambda one: one.prefetch)
        return point

    def levels(self) -> list[Level]:
        """As the law of the linear range takes them."""
        return [
            Level(float(one.prefetch), float(one.samples), one.rate_per_s, one.deviation_per_s**2)
            for one in self.open_loop
        ]

    @property
    def ceiling_per_s(self) -> float:
        """The most that was seen: the middle of those prefetches that gave about as much.

        One lucky moment is no ceiling.
        """
        rates = [one.rate_per_s for one in self.open_loop]
        return median(rate for rate in rates if rate >= ABOUT_AS_MUCH * max(rates))

    def prefetch_of(self, part: float) -> int:
        """The smallest prefetch of the sweep that gave this part of the ceiling."""
        return self.prefetch_at(part * self.ceiling_per_s)

    def prefetch_at(self, rate_per_s: float) -> int:
        """The smallest prefetch of the sweep that gave this rate; the largest if none did."""
        points = self.open_loop
        enough = (one.prefetch for one in points if one.rate_per_s >= rate_per_s)
        return next(enough, points[-1].prefetch)
