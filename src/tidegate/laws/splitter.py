"""Deal messages to replicas by their shares, one by one or in batches.

    owed_i = Σ share_i − dealt_i          while shares stand, |owed_i| < 1 after every message

The m-th message of a replica may come once it is owed more than m − 1 (`opens`) and must have come
when it is owed m (`closes`); of those that may, the one that must first is next. With shares that
add up to 1 this keeps every replica within one message of its due (proportionate-fair scheduling
on one processor). Greedy ways such as weighted round robin do not: with many small shares beside a
large one they run several messages ahead.

A batch is rounded in itself: each replica gets its due rounded down or up, and those that are owed
the most are rounded up. When shares change, what is owed stays owed: a producer that sends less
than a message per change reaches everybody all the same.

A put takes this path, so it costs two heap operations and nothing else, and imports nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from tidegate.core.replication import ALIAS

# Shares are sums of floats: what is this near to a whole message is one.
_NEAR = 1e-9


class Splitter:
    """Turns shares into numbers of replicas; ALIAS while nobody has a share."""

    def __init__(self, shares: Mapping[int, float], first: float = 0.0) -> None:
        """`first`, from 0 to 1, says where on the line of shares to begin.

        Producers that each begin elsewhere do not all send their first message to one replica.
        """
        self._shares: dict[int, float] = {}
        self._owed: dict[int, float] = {}
        # Where to begin, until it has begun: what shares there are may not be known yet.
        self._begin_at = first
        self._first: int | None = None
        # Of turns one by one, since the last batch or change of shares.
        self._in_order = False
        self._step = 0
        self._dealt: dict[int, int] = {}
        self._closes: dict[int, int] = {}
        self._open: list[tuple[int, int]] = []
        self._opening: list[tuple[int, int]] = []
        self.set_shares(shares)

    @property
    def shares(self) -> Mapping[int, float]:
        """Those above 0, adding up to 1; empty: everything goes to the alias."""
        return self._shares

    def set_shares(self, shares: Mapping[int, float]) -> None:
        """Deal by other shares from here on; they need not add up to 1."""
        usable = {
            number: share for number, share in shares.items() if share > 0.0 and share < math.inf
        }
        total = math.fsum(usable.values())
        self._settle()
        self._shares = {number: share / total for number, share in usable.items()}
        # What is owed to replicas that are gone is owed to nobody; the rest keeps its sum of 0.
        owed = {number: self._owed.get(number, 0.0) for number in usable}
        excess = math.fsum(owed.values()) / len(owed) if owed else 0.0
        self._owed = {number: debt - excess for number, debt in owed.items()}
        self._first = self._at(self._begin_at) if self._begin_at > 0.0 else None
        self._forget_order()

    def next(self) -> int:
        """The replica that the next message goes to."""
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
            # Only rounding of floats leads here: somebody's turn comes a step too late.
            number = heappop(opening)[1]
        self._dealt[number] = dealt = self._dealt[number] + 1
        share = self._shares[number]
        opens = (dealt - self._owed[number]) / share
        # It opens in the step after the last message is owed and closes in that where it is itself.
        self._closes[number] = math.ceil(opens + 1.0 / share - _NEAR)
        heappush(self._opening, (math.floor(opens + _NEAR) + 1, number))
        return number

    def deal(self, count: int) -> dict[int, int]:
        """How many of a batch each replica gets, none left out of it that gets any."""
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
        """The replica at this place on the line of shares."""
        for number, share in self._shares.items():
            position -= share
            if position < 0.0:
                return number
        return None

    def _take(self, number: int) -> None:
        """Out of whichever heap it waits in."""
        self._open = [turn for turn in self._open if turn[1] != number]
        self._opening = [turn for turn in self._opening if turn[1] != number]
        heapify(self._open)
        heapify(self._opening)
        self._has_begun()

    def _has_begun(self) -> None:
        self._begin_at, self._first = 0.0, None

    def _settle(self) -> None:
        """Note what was dealt one by one in what is owed."""
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
        """Everybody's first turn, from what is owed now."""
        self._dealt = dict.fromkeys(self._shares, 0)
        for number, share in self._shares.items():
            opens = -self._owed[number] / share
            self._closes[number] = math.ceil(opens + 1.0 / share - _NEAR)
            self._opening.append((math.floor(opens + _NEAR) + 1, number))
        heapify(self._opening)
        self._in_order = True
