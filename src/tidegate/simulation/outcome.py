"""What a run was like: a few numbers that policies are compared by, and series to be drawn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec


class Series(msgspec.Struct, kw_only=True):
    """What was so at each recorded moment; all columns are equally long."""

    t_s: list[float] = []
    # What came, over the time since the last moment.
    rate_per_s: list[float] = []
    average_load: list[float] = []
    # Waiting messages by the number of the replica; "0" is the alias.
    waiting: list[dict[str, int]] = []
    oldest_age_s: list[float] = []
    # Replicas that serve, and those that were ordered and do not serve yet.
    replicas: list[int] = []
    ordered: list[int] = []
    draining: list[int] = []
    # Machines that run, and those that boot.
    machines: list[int] = []
    booting: list[int] = []
    # ceil(rate / capacity): as few replicas as can deliver what comes.
    ideal: list[int] = []


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that did something, for people."""

    t_s: float
    loop: str
    rule: str
    actions: Sequence[str]
    reason: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run. The same scenario and seed give the same bytes of JSON."""

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
    # Of waiting messages per serving replica.
    average_load_peak: float
    average_load_mean: float
    # Time with an average load above max_load.
    above_s: float
    # The same without the one polling interval in which each excursion was noticed.
    late_s: float
    machine_s: float
    # As few machine-seconds as the load needs, at ideal replicas and no boots.
    machine_s_ideal: float
    replicas_peak: int
    machines_peak: int
    boots: int
    failed_boots: int
    # Changes of direction between replicas that were added and that went.
    reversals: int
    cancelled_drains: int
    wait_s_mean: float
    wait_s_max: float
    decisions: int
    # Of replicas that were there, whatever they did.
    replica_s: float = 0.0
    # Windows of the agreement by what they say; None: there is none.
    windows_met: int | None = None
    windows_warned: int | None = None
    windows_breached: int | None = None
    series: Series
    explained: Sequence[Explained] = ()

    def summary(self) -> dict[str, Any]:
        """The numbers, without what is drawn."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        del plain["series"], plain["explained"]
        return plain

    def as_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def reversals_of(turns: Sequence[int]) -> int:
    """How often the direction changed."""
    return sum(before != after for before, after in pairwise(turns))
