"""A model of how clients arrive without election, as in JORAM by default.

The paper says of JORAM's own balancing only that it distributes clients badly. We model it as a
random choice of the replica, independent of the client's role. For a fair comparison we use a
median outcome: with 4 producers and 8 consumers on two replicas there are 2^12 equally likely
placements. They are ordered by the distance between x_1 and y_1, then by the distance of both from
one half. The median of this order is used.
"""

from __future__ import annotations

from math import comb


def median_placement(producers: int, consumers: int) -> tuple[int, int]:
    """Return how many producers and consumers the first replica gets in the median placement."""
    outcomes = sorted(
        (
            (
                abs(first / producers - second / consumers),
                abs(first / producers - 0.5) + abs(second / consumers - 0.5),
                # Of two mirror images, the one with more producers on the first replica.
                -first,
                first,
                second,
            ),
            comb(producers, first) * comb(consumers, second),
        )
        for first in range(producers + 1)
        for second in range(consumers + 1)
    )
    seen, half = 0, 2 ** (producers + consumers) / 2
    for (_, _, _, first, second), ways in outcomes:
        seen += ways
        if seen >= half:
            return first, second
    raise AssertionError("all outcomes together are all there are")
