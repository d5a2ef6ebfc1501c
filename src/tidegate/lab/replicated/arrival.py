"""Where clients end up when nobody looks at what they are: JORAM's default, as a model.

The paper says of JORAM's own balancing only that it distributes clients badly. We take it as a
choice at random among the replicas, whatever the client's role, and of all its outcomes not one
that we like but a middle one: with 4 producers and 8 consumers on two replicas there are 2^12
equally likely placements; ordered by how far x_1 and y_1 are from each other, and then by how far
x_1 and y_1 are from one half, we take the median.
"""

from __future__ import annotations

from math import comb


def median_placement(producers: int, consumers: int) -> tuple[int, int]:
    """How many producers and consumers the first of two replicas gets, in the middle outcome."""
    outcomes = sorted(
        (
            (
                abs(first / producers - second / consumers),
                abs(first / producers - 0.5) + abs(second / consumers - 0.5),
                # Of mirror images, the one with more producers on the first.
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
