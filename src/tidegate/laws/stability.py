"""The stability of a queue: whether it fills, empties, or neither.

    Δl = p − c          p production rate, c consumption rate (messages per second)
    flooded    Δl >  relative · max(p, c) + absolute
    draining  −Δl >  relative · max(p, c) + absolute
    stable     otherwise

If p > c, the larger of the two is p, so the code needs no `max`: a queue is flooded if `p − c >
relative·p + absolute` and draining if `c − p > relative·c + absolute`. A Spark Column can evaluate
these conditions too. The band is needed because two noisy rates are never equal.

For several replicas ΔL = Σp − Σc. If every replica is stable, the sum is stable. The reverse does
not hold: one replica may flood as fast as another one drains.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tidegate.core.term import Term


class Stability(StrEnum):
    """The direction in which a queue's length changes."""

    STABLE = "stable"
    FLOODED = "flooded"
    DRAINING = "draining"


@dataclass(frozen=True)
class Band:
    """The tolerance within which production and consumption rates count as equal."""

    relative: float = 0.05
    # For queues with almost no traffic, where one message is a large fraction of the rate.
    absolute_per_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.relative < 1.0 or not self.absolute_per_s >= 0.0:
            raise ValueError(
                "a tolerance band has a relative part from 0 up to 1 and an absolute part from 0 "
                f"on, not {self.relative} and {self.absolute_per_s}"
            )


DEFAULT_BAND = Band()


def growth_per_s(produced_per_s: Term, consumed_per_s: Term) -> Term:
    """Return Δl, the number of messages by which the queue grows per second."""
    return produced_per_s - consumed_per_s


def is_flooded(produced_per_s: Term, consumed_per_s: Term, band: Band = DEFAULT_BAND) -> Term:
    """Return whether the queue grows by more than the band allows."""
    allowed = produced_per_s * band.relative + band.absolute_per_s
    return growth_per_s(produced_per_s, consumed_per_s) > allowed


def is_draining(produced_per_s: Term, consumed_per_s: Term, band: Band = DEFAULT_BAND) -> Term:
    """Return whether the queue shrinks by more than the band allows."""
    return is_flooded(consumed_per_s, produced_per_s, band)


def stability(produced_per_s: float, consumed_per_s: float, band: Band = DEFAULT_BAND) -> Stability:
    """Return whether one queue is flooded, draining or stable."""
    if is_flooded(produced_per_s, consumed_per_s, band):
        return Stability.FLOODED
    if is_draining(produced_per_s, consumed_per_s, band):
        return Stability.DRAINING
    return Stability.STABLE


@dataclass(frozen=True)
class Total:
    """The rates and the stability of a replicated queue as a whole."""

    produced_per_s: float
    consumed_per_s: float
    growth_per_s: float
    overall: Stability
    every_replica_stable: bool


def total(rates: Iterable[tuple[float, float]], band: Band = DEFAULT_BAND) -> Total:
    """Return the totals of replicas, each given as (production rate, consumption rate)."""
    replicas = list(rates)
    produced = sum(p for p, _ in replicas)
    consumed = sum(c for _, c in replicas)
    return Total(
        produced_per_s=produced,
        consumed_per_s=consumed,
        growth_per_s=growth_per_s(produced, consumed),
        overall=stability(produced, consumed, band),
        every_replica_stable=all(stability(p, c, band) is Stability.STABLE for p, c in replicas),
    )
