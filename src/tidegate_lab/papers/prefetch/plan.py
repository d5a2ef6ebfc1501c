"""The notes of a consumer's meter over time, and samples of any length made from them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

import msgspec

from tidegate.lab.prefetch.consumer_process import Note
from tidegate.lab.prefetch.steered import Step

# The number of samples whose mean must be within the band.
MEAN_OF = 5


class Point(msgspec.Struct, frozen=True):
    """One sample of a consumer."""

    # The end of the sample in seconds since the start of the track.
    at_s: float
    rate_per_s: float
    handled_per_s: float
    prefetch: float
    held: float


class Track:
    """The notes of a meter and the steps of a control loop, in order of time."""

    def __init__(self, notes: Sequence[Note] = (), steps: Sequence[Step] = ()) -> None:
        self.notes = list(notes)
        self.steps = list(steps)

    def add(self, notes: Sequence[Note], steps: Sequence[Step]) -> None:
        self.notes += notes
        self.steps += steps

    @property
    def began_at(self) -> float:
        return self.notes[0].at

    @property
    def seconds(self) -> float:
        return self.notes[-1].at - self.notes[0].at if self.notes else 0.0

    def since(self, at: float) -> Track:
        """Return the part of the track from this time of the shared clock on."""
        return Track(
            [one for one in self.notes if one.at >= at], [one for one in self.steps if one.at >= at]
        )

    def samples(self, sample_s: float) -> list[Point]:
        """Return consecutive samples of `sample_s`; an incomplete one at the end is left out."""
        points: list[Point] = []
        within: list[Note] = []
        first = self.notes[0] if self.notes else None
        for note in self.notes[1:]:
            assert first is not None
            within.append(note)
            # Notes may be late, so a rate is computed with the actual duration of its sample.
            due = self.began_at + (len(points) + 1) * sample_s
            if note.at < due - 0.02:
                continue
            took_s = note.at - first.at
            points.append(
                Point(
                    at_s=note.at - self.began_at,
                    rate_per_s=(note.delivered - first.delivered) / took_s,
                    handled_per_s=(note.handled - first.handled) / took_s,
                    prefetch=fmean(one.prefetch for one in within),
                    held=fmean(one.held for one in within),
                )
            )
            first, within = note, []
        return points

    def rates(self, sample_s: float) -> list[float]:
        return [point.rate_per_s for point in self.samples(sample_s)]


class Spread(msgspec.Struct, frozen=True):
    """The mean and the standard deviation of sampled rates."""

    mean_per_s: float
    deviation_per_s: float
    samples: int

    @staticmethod
    def of(rates: Sequence[float]) -> Spread:
        return Spread(fmean(rates), pstdev(rates), len(rates))

    def __str__(self) -> str:
        return f"{self.mean_per_s:.0f} ± {self.deviation_per_s:.0f}"


def back_after_s(rates: Sequence[float], target: float, sample_s: float, band: float) -> float:
    """Return the seconds until the moving mean of five samples has settled within the band.

    Settled means that five consecutive means are within `band` (a fraction) of the target. All
    samples are from after the disturbance; the result is 0 if the first mean is already within the
    band. If the rate does not settle, the result is longer than the observed time. Later deviations
    do not count, because a busy machine causes them and not the control loop.
    """
    within = 0
    for last in range(MEAN_OF, len(rates) + 1):
        mean = fmean(rates[last - MEAN_OF : last])
        within = within + 1 if abs(mean - target) <= band * target else 0
        if within == MEAN_OF:
            first = last - MEAN_OF + 1
            return 0.0 if first == MEAN_OF else first * sample_s
    return (len(rates) + 1) * sample_s
