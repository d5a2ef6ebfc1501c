"""Sampling of one in N events, for records that would cost too much for every event.

N is a power of two that follows the load, so that about a constant number per second is taken. Each
taken event stands for N events, so that sums of weights stay correct while N changes. N doubles as
soon as an interval's share was taken, so that a burst does not exceed the share until the next
tick.
"""

from __future__ import annotations

import random

_EVERY_MAX = 1 << 40


class Sampler:
    """Chooses the events to record."""

    def __init__(
        self, per_s: float, *, interval_s: float = 1.0, randomness: random.Random | None = None
    ) -> None:
        self.every = 1
        self._share = max(int(per_s * interval_s), 1)
        self._taken = 0
        self._seen = 0
        self._random = randomness or random.Random()
        # For `one_by_one`: the number of events to skip, and the weight of the next chosen one.
        self.skip = 1
        self._weight = 1

    def among_ids(self, first_id: int, count: int) -> range:
        """Return the chosen ids among `count` consecutive ids; each stands for `every` ids."""
        self._seen += count
        while count // self.every > self._share:
            self.every *= 2
        # The choice depends on the id only, so that it does not depend on how puts are split into
        # batches.
        start = first_id + -first_id % self.every
        chosen = range(start, first_id + count, self.every)
        if chosen:
            self._take(len(chosen))
        return chosen

    def one_by_one(self) -> int:
        """Choose the present event, and return the number of events it stands for.

        The caller counts `skip` down for each event, and calls this when it reaches 0.
        """
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
        # A random skip avoids aliasing. With a fixed skip of two, a client that alternates puts and
        # reads would have only its puts recorded.
        self._weight = self.every
        self.skip = self._random.randrange(1, 2 * self.every)

    def tick(self) -> None:
        """End an interval, and adapt N to the load that was seen in it."""
        every = 1
        while self._seen // every > self._share:
            every *= 2
        if every < self.every:
            # Reduce N by half at most, because the next burst may follow soon.
            self.every = max(every, self.every // 2)
            if self.skip > 2 * self.every:
                self._draw()
        else:
            self.every = every
        self._taken = self._seen = 0
