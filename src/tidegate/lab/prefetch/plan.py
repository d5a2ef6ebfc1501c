"""The sizes of the prefetch experiments, and the paper's results."""

from __future__ import annotations

from typing import NamedTuple, Self

import msgspec

from tidegate.core.prefetch import ControllerKind
from tidegate.lab.prefetch.stage import Setting

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


class Plan(msgspec.Struct, frozen=True):
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
