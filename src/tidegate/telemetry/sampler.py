"""One in N: which of many are recorded, when recording all would cost too much.

N is a power of two that follows the load, so that about so many a second are taken at any rate.
Each that is taken stands for N, so that sums of weights stay right while N changes. A burst does
not wait for the next tick: whenever an interval's share has been taken, N doubles at once.
"""

from __future__ import annotations

import random

_EVERY_MAX = 1 << 40


class Sampler:
    """Chooses."""

    def __init__(
        self, per_s: float, *, interval_s: float = 1.0, randomness: random.Random | None = None
    ) -> None:
        self.every = 1
        self._share = max(int(per_s * interval_s), 1)
        self._taken = 0
        self._seen = 0
        self._random = randomness or random.Random()
        # Of those that come one by one: how many are passed over, and what the next stands for.
        self.skip = 1
        self._weight = 1

    def among_ids(self, first_id: int, count: int) -> range:
        """Which of so many consecutive ids are taken; each stands for `every`."""
        self._seen += count
        while count // self.every > self._share:
            self.every *= 2
        # By the id alone: who splits messages in batches, or how, has no say in who is chosen.
        start = first_id + -first_id % self.every
        chosen = range(start, first_id + count, self.every)
        if chosen:
            self._take(len(chosen))
        return chosen

    def one_by_one(self) -> int:
        """Call when `skip`, which the caller counts down, is 0: what this one stands for."""
        weight = self._weight
        self._seen += weight
        self._take(1)
        self._draw()
        return weight

    def _take(self, count: int) -> None:
        self._taken += count
        if self._taken >= self._share and self.every < _EVERY_MAX:
            self._taken = 0
            self.every *= 2

    def _draw(self) -> None:
        # At random: each second request would be a put, and never a read, for who does both.
        self._weight = self.every
        self.skip = self._random.randrange(1, 2 * self.every)

    def tick(self) -> None:
        """An interval is over: as many in N as its load asks for."""
        every = 1
        while self._seen // every > self._share:
            every *= 2
        if every < self.every:
            # Down by halves: the next burst may be near.
            self.every = max(every, self.every // 2)
            if self.skip > 2 * self.every:
                self._draw()
        else:
            self.every = every
        self._taken = self._seen = 0
