"""The record of an experiment: every sample, and the open-loop curve that they form."""

from __future__ import annotations

import enum
from statistics import fmean, median, pvariance

import msgspec

from tidegate.laws.linear_range import Level

# Rates above this fraction of the ceiling count as the ceiling.
NEARLY_ALL = 0.95
# On a line, only the largest prefetch of a sweep gives this fraction of the largest rate.
ABOUT_AS_MUCH = 0.8


class Phase(enum.StrEnum):
    """The purpose of a sample."""

    SWEEP = "sweep"
    # Between two parts of the experiment, or within a range that turned out not to be linear.
    SETTLING = "settling"
    FIT = "fit"
    HELD_OUT = "held-out"


class Measured(msgspec.Struct, frozen=True):
    """One sample: y(k+1) at the prefetch u(k), and the previous rate y(k)."""

    phase: Phase
    prefetch: int
    rate_per_s: float
    # `None` means that the previous sample was not usable.
    before_per_s: float | None


class OpenLoopPoint(msgspec.Struct, frozen=True):
    """The mean rate at one prefetch of the sweep."""

    prefetch: int
    rate_per_s: float
    deviation_per_s: float
    samples: int


class Record(msgspec.Struct):
    """The samples of an experiment in temporal order."""

    measured: list[Measured] = []
    open_loop: list[OpenLoopPoint] = []
    # Samples during which the queue had nothing to deliver.
    starved: int = 0

    def of(self, *phases: Phase) -> list[Measured]:
        return [one for one in self.measured if one.phase in phases]

    def set_aside(self, *phases: Phase) -> list[Measured]:
        """Mark the samples of these phases as SETTLING, because a later round replaces them.

        Returns the samples as they were before.
        """
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
        """Return the points in the form that `linear_range` expects."""
        return [
            Level(float(one.prefetch), float(one.samples), one.rate_per_s, one.deviation_per_s**2)
            for one in self.open_loop
        ]

    @property
    def ceiling_per_s(self) -> float:
        """The ceiling: the median of the rates that are close to the largest one.

        A single high sample is no ceiling.
        """
        rates = [one.rate_per_s for one in self.open_loop]
        return median(rate for rate in rates if rate >= ABOUT_AS_MUCH * max(rates))

    def prefetch_of(self, part: float) -> int:
        """Return the smallest prefetch of the sweep that gave this fraction of the ceiling."""
        return self.prefetch_at(part * self.ceiling_per_s)

    def prefetch_at(self, rate_per_s: float) -> int:
        """Return the smallest prefetch of the sweep that gave this rate, else the largest."""
        points = self.open_loop
        enough = (one.prefetch for one in points if one.rate_per_s >= rate_per_s)
        return next(enough, points[-1].prefetch)
