"""Whether a queue fills, empties, or neither.

    Δl = p − c          p production rate, c consumption rate (messages per second)
    flooded    Δl >  relative · max(p, c) + absolute
    draining  −Δl >  relative · max(p, c) + absolute
    stable     otherwise

When p > c the larger of the two is p, so the maximum needs no `max`: flooded is
`p − c > relative·p + absolute` and draining is `c − p > relative·c + absolute`, which a Spark
Column can say too. A noisy rate never compares equal to zero, hence the band.

Of several replicas: ΔL = Σp − Σc. All of them stable means that the sum is, not the reverse: one
replica may flood as fast as another one drains.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tidegate.core.term import Term


class Stability(StrEnum):
    """What a queue's length does."""

    STABLE = "stable"
    FLOODED = "flooded"
    DRAINING = "draining"


@dataclass(frozen=True)
class Band:
    """How far rates may lie apart and still count as equal."""

    relative: float = 0.05
    # For queues with next to no traffic, where one message is a large fraction.
    absolute_per_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.relative < 1.0 or not self.absolute_per_s >= 0.0:
            raise ValueError(
                "a tolerance band has a relative part from 0 up to 1 and an absolute part from 0 "
                f"on, not {self.relative} and {self.absolute_per_s}"
            )


DEFAULT_BAND = Band()


def growth_per_s(produced_per_s: Term, consumed_per_s: Term) -> Term:
    """Δl: by how many messages the queue grows each second."""
    return produced_per_s - consumed_per_s


def is_flooded(produced_per_s: Term, consumed_per_s: Term, band: Band = DEFAULT_BAND) -> Term:
    """Whether it grows, beyond the band."""
    allowed = produced_per_s * band.relative + band.absolute_per_s
    return growth_per_s(produced_per_s, consumed_per_s) > allowed


def is_draining(produced_per_s: Term, consumed_per_s: Term, band: Band = DEFAULT_BAND) -> Term:
    """Whether it shrinks, beyond the band."""
    return is_flooded(consumed_per_s, produced_per_s, band)


def stability(produced_per_s: float, consumed_per_s: float, band: Band = DEFAULT_BAND) -> Stability:
    """Which of the three one queue is."""
    if is_flooded(produced_per_s, consumed_per_s, band):
        return Stability.FLOODED
    if is_draining(produced_per_s, consumed_per_s, band):
        return Stability.DRAINING
    return Stability.STABLE


@dataclass(frozen=True)
class Total:
    """A replicated queue as a whole."""

    produced_per_s: float
    consumed_per_s: float
    growth_per_s: float
    overall: Stability
    every_replica_stable: bool


def total(rates: Iterable[tuple[float, float]], band: Band = DEFAULT_BAND) -> Total:
    """The whole of replicas, each given by its production and consumption rate."""
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
