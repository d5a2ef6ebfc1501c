"""A deterministic splitter: deals messages to replicas by their shares, singly or in batches.

    owed_i = Σ share_i − dealt_i          with constant shares |owed_i| < 1 after every message

The m-th message of a replica may be dealt once the replica is owed more than m − 1 (`opens`). It
must be dealt by the time the replica is owed m (`closes`). Among the replicas that may be next, the
one with the earliest deadline is. With shares that add up to 1 this keeps every replica within one
message of its due (proportionate-fair scheduling on one processor). Greedy methods such as weighted
round robin do not: with many small shares beside a large one they run several messages ahead.

A batch is rounded on its own: each replica gets its due rounded down or up, and the replicas that
are owed the most are rounded up. When shares change, debts stay. So a producer that sends less than
one message per change of shares still reaches every replica.

Every put of a logical queue takes this path. A message therefore costs only two heap operations,
and the module imports no other part of Tidegate than the number of the alias.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from tidegate.core.replication import ALIAS

# Shares are sums of floats: a value this close to a whole message counts as whole.
_NEAR = 1e-9


class Splitter:
    """A `Splitter` turns shares into replica numbers, or `ALIAS` while no replica has a share."""

    def __init__(self, shares: Mapping[int, float], first: float = 0.0) -> None:
        """Create a splitter that begins at the position `first` on the line of shares.

        `first` is between 0 and 1. Producers that begin at different positions do not all send
        their first message to the same replica.
        """
        self._shares: dict[int, float] = {}
        self._owed: dict[int, float] = {}
        # Position at which to begin. It is kept until the first message, since shares may come
        # later.
        self._begin_at = first
        self._first: int | None = None
        # State of dealing one by one since the last batch or change of shares.
        self._in_order = False
        self._step = 0
        self._dealt: dict[int, int] = {}
        self._closes: dict[int, int] = {}
        self._open: list[tuple[int, int]] = []
        self._opening: list[tuple[int, int]] = []
        self.set_shares(shares)

    @property
    def shares(self) -> Mapping[int, float]:
        """Shares above 0, normalized to add up to 1.

        Empty means that everything goes to the alias.
        """
        return self._shares

    def set_shares(self, shares: Mapping[int, float]) -> None:
        """Deal by other shares from now on. They need not add up to 1."""
        usable = {
            number: share for number, share in shares.items() if share > 0.0 and share < math.inf
        }
        total = math.fsum(usable.values())
        self._settle()
        self._shares = {number: share / total for number, share in usable.items()}
        # Debts to removed replicas lapse. The remaining debts are shifted to keep their sum at 0.
        owed = {number: self._owed.get(number, 0.0) for number in usable}
        excess = math.fsum(owed.values()) / len(owed) if owed else 0.0
        self._owed = {number: debt - excess for number, debt in owed.items()}
        self._first = self._at(self._begin_at) if self._begin_at > 0.0 else None
        self._forget_order()

    def next(self) -> int:
        """Return the number of the replica for the next message."""
        if len(self._shares) < 2:
            return next(iter(self._shares), ALIAS)
        if not self._in_order:
            self._order()
        self._step = step = self._step + 1
        opening, open_ = self._opening, self._open
        while opening and opening[0][0] <= step:
            number = heappop(opening)[1]
            heappush(open_, (self._closes[number], number))
        if self._first is not None:
            number = self._first
            self._take(number)
        elif open_:
            number = heappop(open_)[1]
        else:
            # Only float rounding leads here: a replica's turn comes one step too late.
            number = heappop(opening)[1]
        self._dealt[number] = dealt = self._dealt[number] + 1
        share = self._shares[number]
        opens = (dealt - self._owed[number]) / share
        # A turn opens in the step after the previous message is owed, and closes in the step in
        # which the message itself is owed.
        self._closes[number] = math.ceil(opens + 1.0 / share - _NEAR)
        heappush(self._opening, (math.floor(opens + _NEAR) + 1, number))
        return number

    def deal(self, count: int) -> dict[int, int]:
        """Return how many of `count` messages each replica gets.

        Replicas that get none are left out.
        """
        if count <= 0:
            return {}
        if len(self._shares) < 2:
            return {next(iter(self._shares), ALIAS): count}
        self._settle()
        owed = self._owed
        dealt: dict[int, int] = {}
        rounded: list[tuple[float, int]] = []
        left = count
        for number, share in self._shares.items():
            due = share * count
            whole = math.floor(due + _NEAR)
            dealt[number] = whole
            left -= whole
            owed[number] += due - whole
            if due - whole > _NEAR:
                rounded.append((-math.inf if number == self._first else -owed[number], number))
        rounded.sort()
        for _, number in rounded[:left]:
            dealt[number] += 1
            owed[number] -= 1.0
        self._has_begun()
        return {number: part for number, part in dealt.items() if part}

    def _at(self, position: float) -> int | None:
        """Return the replica at this position on the line of shares, or `None` beyond its end."""
        for number, share in self._shares.items():
            position -= share
            if position < 0.0:
                return number
        return None

    def _take(self, number: int) -> None:
        """Remove the replica's turn from the heap that contains it."""
        self._open = [turn for turn in self._open if turn[1] != number]
        self._opening = [turn for turn in self._opening if turn[1] != number]
        heapify(self._open)
        heapify(self._opening)
        self._has_begun()

    def _has_begun(self) -> None:
        self._begin_at, self._first = 0.0, None

    def _settle(self) -> None:
        """Add the messages dealt one by one to the debts."""
        if self._owed and self._in_order:
            for number, dealt in self._dealt.items():
                self._owed[number] += self._shares[number] * self._step - dealt
        self._forget_order()

    def _forget_order(self) -> None:
        self._in_order = False
        self._step = 0
        self._dealt = {}
        self._closes = {}
        self._open = []
        self._opening = []

    def _order(self) -> None:
        """Compute the first turn of every replica from the current debts."""
        self._dealt = dict.fromkeys(self._shares, 0)
        for number, share in self._shares.items():
            opens = -self._owed[number] / share
            self._closes[number] = math.ceil(opens + 1.0 / share - _NEAR)
            self._opening.append((math.floor(opens + _NEAR) + 1, number))
        heapify(self._opening)
        self._in_order = True
