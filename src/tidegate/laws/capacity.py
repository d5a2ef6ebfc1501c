"""How many clients a queue serves best, and which of them.

    X(n) = λ·n / (1 + σ·(n − 1) + κ·n·(n − 1))     Universal Scalability Law

C is the number of clients that maximises the throughput. A measured curve flattens long before it
peaks and is noisy on the flat, so the rule is: C is the smallest number of clients whose
throughput reaches 95 % of the best. Of each number of clients the best mix of producers and
consumers counts, stable mixes (production and consumption within the band) before others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.laws.stability import DEFAULT_BAND, Band

# Of the best throughput: where more clients stop to pay.
KNEE_FRACTION = 0.95


@dataclass(frozen=True)
class Operation:
    """What a queue did while so many producers and consumers were on it, on average."""

    producers: int
    consumers: int
    produced_per_s: float
    consumed_per_s: float
    # How many seconds it was seen so.
    seconds: float


@dataclass(frozen=True)
class Curve:
    """The fitted curve, for drawing: X(n) = rate·n / (1 + contention·(n−1) + coherency·n·(n−1))."""

    rate_per_s: float
    contention: float
    coherency: float
    r2: float


@dataclass(frozen=True)
class Capacity:
    """C of a queue with the mix that reaches it; numbers are NaN or 0 when not accepted."""

    accepted: bool
    reason: str
    clients: int
    throughput_per_s: float
    best_producers: int
    best_consumers: int
    peak_per_s: float
    # Whether the throughput was seen to flatten; if not, C is a lower bound.
    flattens: bool
    curve: Curve | None
    operations: int
    seconds: float


def capacity(operations: Sequence[Operation], band: Band = DEFAULT_BAND) -> Capacity:
    """The capacity of one queue; too little data is a reason and not a number."""
    raise NotImplementedError
