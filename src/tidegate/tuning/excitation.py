"""Moves of the prefetch that tell a from b: random levels, each held for some samples.

A prefetch that rests says nothing about b, and one that changes slower than the rate follows moves
together with it in one line. Every level comes equally often, shuffled anew each time round, so no
part of the experiment misses a level by chance; each is held for one, two or three samples.
"""

from __future__ import annotations

from random import Random

from tidegate.tuning.record import Phase

HOLD_SAMPLES = (1, 2, 3)
LEVELS_MAX = 10
# Three quarters are fitted.
FIT_OF_FOUR = 3


def levels_within(low: int, high: int) -> list[int]:
    """Some whole prefetches, evenly spread, both ends included."""
    count = min(high - low + 1, LEVELS_MAX)
    return sorted({round(low + (high - low) * step / (count - 1)) for step in range(count)})


def excitation(low: int, high: int, samples: int, random: Random) -> list[tuple[Phase, int]]:
    """The prefetch of every sample, first those to fit and then those that are held out."""
    levels = levels_within(low, high)
    to_fit = samples * FIT_OF_FOUR // 4
    return [
        *((Phase.FIT, prefetch) for prefetch in _moves(levels, to_fit, random)),
        *((Phase.HELD_OUT, prefetch) for prefetch in _moves(levels, samples - to_fit, random)),
    ]


def _moves(levels: list[int], samples: int, random: Random) -> list[int]:
    moves: list[int] = []
    while len(moves) < samples:
        shuffled = random.sample(levels, len(levels))
        for prefetch in shuffled:
            moves += [prefetch] * random.choice(HOLD_SAMPLES)
    return moves[:samples]
