"""Sizes of the experiments: the paper's, or smaller ones with the factor stated."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Scale(msgspec.Struct, frozen=True):
    """Sizes of one run; with the defaults all experiments take less than ten minutes."""

    # Figure 4: messages that are put and then read, at each backlog, in several rounds.
    speed_messages: int = 1500
    backlogs: Sequence[int] = (10_000, 100_000, 1_000_000)
    speed_rounds: int = 3
    # Figures 5 and 6.
    mix_messages: int = 15_000
    mix_consumers: Sequence[int] = (1, 2, 3)
    mix_runs: int = 1
    # Limits the time on a busy machine.
    mix_seconds_max: float = 30.0
    # Figure 7: the seconds per mix, and the mixes.
    capacity_seconds: float = 6.0
    capacity_producers: Sequence[int] = (1, 2, 4, 8)
    capacity_consumers_each: Sequence[float] = (0.5, 1.0, 2.0)
    # Figures 8 and 9, and the scenarios.
    messages_each_producer: int = 1500
    distribution_runs: int = 1
    scenario_seconds: float = 8.0
    # The optimal scenario must be included.
    scenarios: Sequence[str] = ("optimal", "worst", "locally unstable", "unfair")
    # Figures 10 and 11.
    client_every_s: float = 2.0
    # The configured limit of each replica, since two cores cannot stand for several machines.
    replica_rate_per_s: float = 100.0

    @staticmethod
    def quick() -> Scale:
        """Return the smallest sizes that run all code; their results mean nothing."""
        return Scale(
            speed_messages=60,
            backlogs=(2_000,),
            speed_rounds=1,
            mix_messages=300,
            mix_consumers=(1, 2),
            capacity_seconds=0.5,
            capacity_producers=(1, 2),
            capacity_consumers_each=(1.0, 2.0),
            messages_each_producer=300,
            scenario_seconds=2.0,
            scenarios=("optimal", "worst"),
            client_every_s=0.3,
        )

    @staticmethod
    def full() -> Scale:
        """Return the paper's sizes; a run takes most of an hour."""
        return Scale(
            mix_runs=3,
            mix_seconds_max=600.0,
            capacity_seconds=20.0,
            messages_each_producer=10_000,
            distribution_runs=3,
            scenario_seconds=30.0,
            client_every_s=10.0,
        )
