"""How large a run of the prefetch experiments is, and what the paper has found."""

from __future__ import annotations

from typing import NamedTuple, Self

import msgspec

from tidegate.core.prefetch import ControllerKind
from tidegate.lab.prefetch.stage import Setting

PREFETCH_MAX = 360
# One step of a prefetch of 1 is 100 %, and of 300 nothing: so levels lie the further apart the
# higher they are.
LEVELS = (
    *(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 22, 28),
    *(40, 64, 128, 200, 360),
)


class Paper(NamedTuple):
    """Printed there: table 2, and the text to figures 3 and 5 to 7."""

    a: float = 0.26
    b: float = 59.73
    knee: int = 22
    # Called RMSE there; larger than every rate, so it is the mean square.
    mean_square_training: float = 8485.95
    mean_square_test: float = 8586.84
    r2_training: float = 0.80
    r2_test: float = 0.82

    @property
    def worth_per_s(self) -> float:
        """Of one unit of prefetch, at rest."""
        return self.b / (1.0 - self.a)


PAPER = Paper()
# Mean and standard deviation at a target of 400 msg/s, samples of 10 s.
PAPER_CLOSED_LOOP = {
    ControllerKind.P: (414.37, 216.09),
    ControllerKind.PI: (397.19, 95.12),
    ControllerKind.PID: (385.52, 196.03),
}


class Plan(msgspec.Struct, frozen=True):
    """Lengths and sizes of one run."""

    setting: Setting = Setting()
    target_per_s: float = 400.0
    levels: tuple[int, ...] = LEVELS
    # Samples at each level of the open loop.
    level_samples: int = 2
    sample_s: float = 1.0
    settle_s: float = 15.0
    # In which the prefetch moves at random, to be fitted and held out.
    excited_samples: int = 64
    # After settling.
    watched_samples: int = 60
    # Disturbances are many: half the sample, so that all fit into minutes.
    disturbed_sample_s: float = 0.5
    disturbed_settle_s: float = 10.0
    saturated_s: float = 60.0
    # At each prefetch of the contest, and messages that two consumers share.
    contest_s: float = 6.0
    contest_rounds: int = 3
    shared_messages: int = 4000

    @classmethod
    def full(cls) -> Self:
        """As in the paper: every level, samples of 10 s; hours."""
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
        """Shows that everything works; no figures to quote."""
        return cls(
            # Fewer messages on a longer way: a machine that is busy with tests blurs less of it.
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
