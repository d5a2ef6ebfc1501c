"""The sizes of the prefetch experiments, and the paper's results."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from statistics import fmean, pstdev
from typing import NamedTuple, Protocol, Self

import msgspec

from tidegate.core.prefetch import ControllerKind, PrefetchGoal
from tidegate_lab.papers.prefetch.consumer_process import LoopStep, MeasurementNoise, MeterNote

# Interfaces of the prefetch experiments' testbed, with real or simulated processes.


QUEUE = "orders"
# The queue's length limit, at which the oldest message is dropped. Publishers offer more than the
# consumer can handle, so the queue would grow without bound.
LENGTH_MAX = 20_000
# Messages in the queue at the start: enough to fill all but the largest prefetches at once.
WAITING_FIRST = 2_000


class BrokerKind(StrEnum):
    """The message broker under test."""

    RABBITMQ = "rabbitmq"
    TIDEGATE = "tidegate"


class Setting(msgspec.Struct, frozen=True):
    """Publishers, network and handler; the defaults are those of the paper's table 1."""

    publishers: int = 25
    pause_s: float = 0.010
    pause_deviation_s: float = 0.001
    # The delay in each direction; the paper does not print it.
    delay_s: float = 0.006
    handler_s: float = 0.001

    @property
    def offered_per_s(self) -> float:
        return self.publishers / self.pause_s


class TestbedConsumer(Protocol):
    """A consumer under test."""

    # All notes of the consumer since its start.
    track: MeterTrack

    def set_prefetch(self, prefetch: int) -> None:
        """Set a fixed prefetch and end the control loop of the consumer."""

    def set_handler(self, handler_s: float) -> None: ...
    def steer(self, goal: PrefetchGoal) -> None: ...
    def blur(self, blur: MeasurementNoise) -> None: ...

    def watch(self, seconds: float) -> MeterTrack:
        """Wait for `seconds` and return what the consumer did meanwhile."""


class NetworkUnderTest(Protocol):
    """The network between consumers and broker."""

    def set_delay(self, delay_s: float) -> None: ...


class Testbed(Protocol):
    """A broker with active publishers, and a network between it and its consumers."""

    @property
    def engine(self) -> BrokerKind: ...
    @property
    def setting(self) -> Setting: ...
    @property
    def network(self) -> NetworkUnderTest: ...

    def consumer(self, prefetch: int) -> AbstractContextManager[TestbedConsumer]:
        """Add a consumer behind the network until the block ends."""

    def steer(self, consumer: TestbedConsumer, goal: PrefetchGoal) -> None:
        """Start the control loop: in the worker on RabbitMQ, in the node on Tidegate."""

    def steer_no_more(self) -> None: ...

    def publish(self, times: float) -> int:
        """Multiply the publishers' rate by `times`, and return the messages published so far.

        `times` is relative to the setting; 0 pauses the publishers.
        """

    def waiting(self) -> int: ...
    def purge(self) -> None: ...
    def wait_for_messages(self, at_least: int = WAITING_FIRST) -> None: ...

    def now(self) -> float:
        """Return the time in seconds on the clock of all tracks."""

    def pause(self, seconds: float) -> None: ...


PREFETCH_MAX = 360
# A step of 1 is 100 % at prefetch 1 and negligible at 300, so higher levels are further apart.
LEVELS = (
    *(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 22, 28),
    *(40, 64, 128, 200, 360),
)


class Paper(NamedTuple):
    """Values printed in the paper's table 2, and in the text to figures 3 and 5 to 7."""

    a: float = 0.26
    b: float = 59.73
    knee: int = 22
    # The paper calls these RMSE, but they exceed every rate, so they must be mean squares.
    mean_square_training: float = 8485.95
    mean_square_test: float = 8586.84
    r2_training: float = 0.80
    r2_test: float = 0.82

    @property
    def worth_per_s(self) -> float:
        """The steady-state rate per unit of prefetch."""
        return self.b / (1.0 - self.a)


PAPER = Paper()
# Mean and standard deviation in msg/s at a target of 400 msg/s, with samples of 10 s.
PAPER_CLOSED_LOOP = {
    ControllerKind.P: (414.37, 216.09),
    ControllerKind.PI: (397.19, 95.12),
    ControllerKind.PID: (385.52, 196.03),
}


class PrefetchPlan(msgspec.Struct, frozen=True):
    """The lengths and sizes of one run."""

    setting: Setting = Setting()
    target_per_s: float = 400.0
    levels: tuple[int, ...] = LEVELS
    # Samples at each level of the open loop.
    level_samples: int = 2
    sample_s: float = 1.0
    settle_s: float = 15.0
    # Samples with random prefetches, for the training and the test data of the model.
    excited_samples: int = 64
    # Samples after settling.
    watched_samples: int = 60
    # Samples of half the length, because there are many disturbances.
    disturbed_sample_s: float = 0.5
    disturbed_settle_s: float = 10.0
    saturated_s: float = 60.0
    # Seconds at each prefetch of the contest, its rounds, and messages that two consumers share.
    contest_s: float = 6.0
    contest_rounds: int = 3
    shared_messages: int = 4000

    @classmethod
    def full(cls) -> Self:
        """Return the sizes of the paper: every level and samples of 10 s; it takes hours."""
        return cls(
            levels=tuple(range(1, PREFETCH_MAX + 1)),
            level_samples=1,
            sample_s=10.0,
            settle_s=160.0,
            disturbed_sample_s=1.0,
            disturbed_settle_s=20.0,
            contest_s=30.0,
            shared_messages=12_000,
        )

    @classmethod
    def quick(cls) -> Self:
        """Return sizes for a quick run, whose figures are not meaningful."""
        return cls(
            # Fewer messages with longer delays, which a machine busy with tests distorts less.
            setting=Setting(publishers=10, delay_s=0.012, handler_s=0.004),
            target_per_s=120.0,
            levels=(1, 2, 3, 4, 6, 8, 12, 24, 60),
            level_samples=2,
            sample_s=0.2,
            settle_s=3.0,
            excited_samples=48,
            watched_samples=10,
            disturbed_sample_s=0.2,
            disturbed_settle_s=3.0,
            saturated_s=3.0,
            contest_s=1.5,
            contest_rounds=1,
            shared_messages=800,
        )


# The notes of a consumer's meter over time, and samples of any length made from them.


# The number of samples whose mean must be within the band.
MEAN_OF = 5


class TrackPoint(msgspec.Struct, frozen=True):
    """One sample of a consumer."""

    # The end of the sample in seconds since the start of the track.
    at_s: float
    rate_per_s: float
    handled_per_s: float
    prefetch: float
    held: float


class MeterTrack:
    """The notes of a meter and the steps of a control loop, in order of time."""

    def __init__(self, notes: Sequence[MeterNote] = (), steps: Sequence[LoopStep] = ()) -> None:
        self.notes = list(notes)
        self.steps = list(steps)

    def add(self, notes: Sequence[MeterNote], steps: Sequence[LoopStep]) -> None:
        self.notes += notes
        self.steps += steps

    @property
    def began_at(self) -> float:
        return self.notes[0].at

    @property
    def seconds(self) -> float:
        return self.notes[-1].at - self.notes[0].at if self.notes else 0.0

    def since(self, at: float) -> MeterTrack:
        """Return the part of the track from this time of the shared clock on."""
        return MeterTrack(
            [one for one in self.notes if one.at >= at], [one for one in self.steps if one.at >= at]
        )

    def samples(self, sample_s: float) -> list[TrackPoint]:
        """Return consecutive samples of `sample_s`; an incomplete one at the end is left out."""
        points: list[TrackPoint] = []
        within: list[MeterNote] = []
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
                TrackPoint(
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


class RateSpread(msgspec.Struct, frozen=True):
    """The mean and the standard deviation of sampled rates."""

    mean_per_s: float
    deviation_per_s: float
    samples: int

    @staticmethod
    def of(rates: Sequence[float]) -> RateSpread:
        return RateSpread(fmean(rates), pstdev(rates), len(rates))

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
