"""What a consumer did over time, cut into samples of any length."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

import msgspec

from tidegate.lab.prefetch.consumer_process import Note
from tidegate.lab.prefetch.steered import Step

# Samples of which the mean is to be back.
MEAN_OF = 5


class Point(msgspec.Struct, frozen=True):
    """One sample."""

    # Its end, since the track began.
    at_s: float
    rate_per_s: float
    handled_per_s: float
    prefetch: float
    held: float


class Track:
    """Notes of a meter, in order."""

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
        """From this moment of the shared clock on."""
        return Track(
            [one for one in self.notes if one.at >= at], [one for one in self.steps if one.at >= at]
        )

    def samples(self, sample_s: float) -> list[Point]:
        """Whole samples, one after the other; what is left at the end is not one."""
        points: list[Point] = []
        within: list[Note] = []
        first = self.notes[0] if self.notes else None
        for note in self.notes[1:]:
            assert first is not None
            within.append(note)
            # A note that comes late counts with the time that it really covers.
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
    """Mean and standard deviation of sampled rates."""

    mean_per_s: float
    deviation_per_s: float
    samples: int

    @staticmethod
    def of(rates: Sequence[float]) -> Spread:
        return Spread(fmean(rates), pstdev(rates), len(rates))

    def __str__(self) -> str:
        return f"{self.mean_per_s:.0f} ± {self.deviation_per_s:.0f}"


def back_after_s(rates: Sequence[float], target: float, sample_s: float, band: float) -> float:
    """Seconds until the mean of five samples is within the band, and the next four are, too.

    All five were taken after the disturbance; it is 0 s if the first mean is within already. If it
    does not happen, more than was watched. One that stays for nine samples has come to rest; what
    a busy machine does a minute later is not the loop's.
    """
    within = 0
    for last in range(MEAN_OF, len(rates) + 1):
        mean = fmean(rates[last - MEAN_OF : last])
        within = within + 1 if abs(mean - target) <= band * target else 0
        if within == MEAN_OF:
            first = last - MEAN_OF + 1
            return 0.0 if first == MEAN_OF else first * sample_s
    return (len(rates) + 1) * sample_s
