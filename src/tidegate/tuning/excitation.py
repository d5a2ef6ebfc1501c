"""Excitation: prefetches that separate a from b. Levels are random, and held for some samples.

A constant prefetch gives no information about b. A prefetch that changes more slowly than the
rate follows moves together with it on one line. Every level occurs equally often, in a new random
order each round, so no part of the experiment misses a level by chance. Each level is held for one,
two or three samples.
"""

from __future__ import annotations

from random import Random

from tidegate.tuning.record import Phase

HOLD_SAMPLES = (1, 2, 3)
LEVELS_MAX = 10
# Quarters of the samples that are fitted.
FIT_OF_FOUR = 3


def levels_within(low: int, high: int) -> list[int]:
    """Return at most `LEVELS_MAX` evenly spaced prefetches, both ends included."""
    count = min(high - low + 1, LEVELS_MAX)
    return sorted({round(low + (high - low) * step / (count - 1)) for step in range(count)})


def excitation(low: int, high: int, samples: int, random: Random) -> list[tuple[Phase, int]]:
    """Return the phase and prefetch of every sample: first FIT, then HELD_OUT."""
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
