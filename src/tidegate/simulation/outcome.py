"""The result of a simulation run: numbers for comparing policies, and series for drawing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec


class Series(msgspec.Struct, kw_only=True):
    """The state at each recorded time; all columns have the same length."""

    t_s: list[float] = []
    # Arrival rate since the previous recorded time.
    rate_per_s: list[float] = []
    average_load: list[float] = []
    # Waiting messages by replica number; "0" is the alias.
    waiting: list[dict[str, int]] = []
    oldest_age_s: list[float] = []
    # Replicas that serve, and ordered ones that do not serve yet.
    replicas: list[int] = []
    ordered: list[int] = []
    draining: list[int] = []
    # Machines that run, and machines that boot.
    machines: list[int] = []
    booting: list[int] = []
    # ceil(rate / capacity): the smallest number of replicas that handles the arrivals.
    ideal: list[int] = []


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """A decision with actions, described for people."""

    t_s: float
    loop: str
    rule: str
    actions: Sequence[str]
    reason: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run. The same scenario and seed give the same bytes of JSON."""

    scenario: str
    policy: str
    seed: int
    duration_s: float
    max_load: float
    capacity_per_s: float
    arrived: int
    consumed: int
    waiting_at_end: int
    in_service_at_end: int
    # Waiting messages per serving replica.
    average_load_peak: float
    average_load_mean: float
    # Seconds with an average load above max_load.
    above_s: float
    # The same without the first polling interval of each excursion, in which it was noticed.
    late_s: float
    machine_s: float
    # Smallest possible machine-seconds: ideal replicas without boot times.
    machine_s_ideal: float
    replicas_peak: int
    machines_peak: int
    boots: int
    failed_boots: int
    # Changes of direction between added and removed replicas.
    reversals: int
    cancelled_drains: int
    wait_s_mean: float
    wait_s_max: float
    decisions: int
    # Replica-seconds in any state.
    replica_s: float = 0.0
    # Windows of the agreement by verdict. `None` means that there is no agreement.
    windows_met: int | None = None
    windows_warned: int | None = None
    windows_breached: int | None = None
    series: Series
    explained: Sequence[Explained] = ()

    def summary(self) -> dict[str, Any]:
        """Return the numbers without the series and decisions."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        del plain["series"], plain["explained"]
        return plain

    def as_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def reversals_of(turns: Sequence[int]) -> int:
    """Return how often the direction changed."""
    return sum(before != after for before, after in pairwise(turns))
