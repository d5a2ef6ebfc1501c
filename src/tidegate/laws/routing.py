"""Flow control: the share of new messages that each replica gets.

    r_i(k+1) = max(c_i − g·(l_i − l_avg), 0) / Σ_j max(c_j − g·(l_j − l_avg), 0)

c_i is the number of messages that replica i consumes in a period. l_i is the number that wait in
it, and l_avg the mean of l_i. A replica that consumes more gets more. A replica with more waiting
messages than the mean gets less until lengths are even.

The paper leaves these points open; the law settles them as follows:
- The maximum clips, so the sum is taken after it. Shares therefore always add up to 1.
- g is 1 in the paper, which corrects a length in one period. Shares reach producers up to a period
  after lengths were read. With that delay g = 1 oscillates for ever and g = 1/2 settles.
- An idle replica consumes what it gets, which does not show its capacity. Its estimated capacity
  counts instead, or the mean of the other replicas while it is unknown.
- The share of a serving replica never falls to 0: a small floor keeps it measurable (probing).
- If all replicas are idle or clipped, shares are equal. A new replica starts at the average share.
- A replica without consumers has no share while other replicas have consumers: no flow out of it
  would ever show that it is stuck.
- A draining replica's share goes down by a step each period, regardless of the formula. When a
  sample is late it goes down by as many steps as periods have passed, since producers had all that
  time. Otherwise a replica would drain more slowly the busier the machine is. A starting or
  unreachable replica has no share. If no replica serves, draining replicas keep equal shares as
  long as any replica is to stay. Otherwise all shares are 0 and the alias keeps the messages.
- In a period in which waiting messages are transferred g is 0: shares follow rates alone, so that
  only the transfer corrects lengths.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from tidegate.core.decisions import Exchange, ReplicaSample
from tidegate.core.topology import ALIAS, ReplicaState


@dataclass(frozen=True)
class ShareSettings:
    """The settings of flow control."""

    # g: the part of a length's distance from the mean that one period corrects.
    gain: float = 0.5
    # Fraction of an even share that a serving replica keeps, so that it stays measurable.
    probe: float = 0.05
    # Number of periods in which a draining replica's even share goes to 0.
    drain_periods: int = 5
    # Number of periods for which a replica counts as new.
    new_periods: float = 3.0
    # Fraction of an even share below which a change is not sent to the clients.
    deadband: float = 0.1


DEFAULT_SHARE_SETTINGS = ShareSettings()


def next_shares(
    replicas: Sequence[ReplicaSample],
    period_s: float,
    capacity_per_s: Mapping[int, float] | None = None,
    *,
    correct_lengths: bool = True,
    flow: ShareSettings = DEFAULT_SHARE_SETTINGS,
    periods: int = 1,
) -> dict[int, float]:
    """Return the shares of all replicas for the next period.

    No share is below 0, and they add up to 1 or are all 0. `capacity_per_s` has the estimated
    capacities by replica number. Set `correct_lengths=False` in a period with transfers. `periods`
    is the number of periods since the last decision about shares.
    """
    known = capacity_per_s or {}
    shares = {one.number: 0.0 for one in replicas}
    open_ = [one for one in replicas if one.reachable and one.state is ReplicaState.SERVING]
    open_ = [one for one in open_ if one.is_attended] or open_
    going = [
        one
        for one in replicas
        if one.reachable and one.state is ReplicaState.DRAINING and one.share > 0.0
    ]
    if open_:
        wanted = _ideal_shares(open_, period_s, known, flow.gain if correct_lengths else 0.0, flow)
        # A draining replica keeps less each period. The serving replicas divide the rest by the
        # formula.
        step = periods / (len(open_) + len(going)) / flow.drain_periods
        for one in going:
            less = one.share - step
            shares[one.number] = less if less > step * 1e-6 else 0.0
        left = max(1.0 - sum(shares.values()), 0.0)
        for number, share in _with_floor(wanted, flow.probe / len(open_)).items():
            shares[number] = share * left
    elif going and any(one.state is not ReplicaState.DRAINING for one in replicas):
        # No replica that is to stay can take messages yet, so the draining ones keep taking them.
        for one in going:
            shares[one.number] = 1.0 / len(going)
    return shares


def shares_differ(
    before: Mapping[int, float],
    after: Mapping[int, float],
    flow: ShareSettings = DEFAULT_SHARE_SETTINGS,
) -> bool:
    """Return whether the new shares are worth sending to the clients.

    A change within the deadband is not; a share that starts from 0 or falls to 0 always is.
    """
    if before.keys() != after.keys():
        return True
    serving = sum(1 for share in after.values() if share > 0.0)
    least = flow.deadband / serving if serving else 0.0
    return any(
        (share > 0.0) != (before[number] > 0.0) or abs(share - before[number]) > least
        for number, share in after.items()
    )


def _ideal_shares(
    replicas: Sequence[ReplicaSample],
    period_s: float,
    known: Mapping[int, float],
    gain: float,
    flow: ShareSettings,
) -> dict[int, float]:
    """Return the shares by the formula, with new replicas at the average; they add up to 1."""
    # A new replica has little history, and its measured rate would be too low.
    new_s = flow.new_periods * period_s
    rates = {
        one.number: None if one.age_s < new_s and one.number not in known else _rate(one, known)
        for one in replicas
    }
    measured = [rate for rate in rates.values() if rate is not None]
    usual = sum(measured) / len(measured) if measured else 0.0
    length = sum(one.waiting for one in replicas) / len(replicas)
    pull = {}
    for one in replicas:
        rate = rates[one.number]
        due = (usual if rate is None else rate) * period_s
        pull[one.number] = max(due - gain * (one.waiting - length), 0.0)
    total = sum(pull.values())
    if not total > 0.0 or not usual > 0.0:
        return dict.fromkeys(pull, 1.0 / len(pull))
    return {number: part / total for number, part in pull.items()}


def _rate(one: ReplicaSample, known: Mapping[int, float]) -> float | None:
    """Return the rate per second that the replica can consume, or `None` if not known."""
    if one.waiting > 0 and not one.waiting_consumers:
        return one.consumed_per_s
    capacity = known.get(one.number)
    if capacity is not None:
        return max(one.consumed_per_s, capacity)
    return None


def _with_floor(shares: dict[int, float], floor: float) -> dict[int, float]:
    """Raise each share to at least `floor`, at the expense of the larger shares in proportion."""
    missing = sum(floor - share for share in shares.values() if share < floor)
    if missing <= 0.0:
        return shares
    spare = sum(share - floor for share in shares.values() if share > floor)
    return {
        number: floor if share <= floor else floor + (share - floor) * (1.0 - missing / spare)
        for number, share in shares.items()
    }


def manual_shares(
    replicas: Sequence[ReplicaSample], said: Mapping[int, float]
) -> dict[int, float] | None:
    """Return the shares that an override sets, limited to the replicas that can take messages.

    A replica that is not named, does not serve or is unreachable has share 0. Returns `None` if
    no replica with a share can take messages.
    """
    parts = {
        one.number: said.get(one.number, 0.0)
        if one.state is ReplicaState.SERVING and one.reachable
        else 0.0
        for one in replicas
    }
    total = sum(parts.values())
    return {number: part / total for number, part in parts.items()} if total > 0.0 else None


# -- splitter --
# A deterministic splitter: deals messages to replicas by their shares, singly or in batches.
#
#     owed_i = Σ share_i − dealt_i          with constant shares |owed_i| < 1 after every message
#
# The m-th message of a replica may be dealt once the replica is owed more than m − 1 (`opens`). It
# must be dealt by the time the replica is owed m (`closes`). Among the replicas that may be next,
# the one with the earliest deadline is. With shares that add up to 1 this keeps every replica
# within one message of its due (proportionate-fair scheduling on one processor). Greedy methods
# such as weighted round robin do not: with many small shares beside a large one they run several
# messages ahead.
#
# A batch is rounded on its own: each replica gets its due rounded down or up, and the replicas that
# are owed the most are rounded up. When shares change, debts stay. So a producer that sends less
# than one message per change of shares still reaches every replica.
#
# Every put of a logical queue takes this path. A message therefore costs only two heap operations,
# and the module imports no other part of Tidegate than the number of the alias.


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


# -- exchange --
# Transfers of waiting messages between replicas.
#
#     alias    → serving replicas      by share: messages put while no replica could be reached
#     draining → shortest replicas     all messages, once the draining replica's share is 0
#     idle     → attended replicas     all messages of replicas without consumers, if some have them
#     flooded  → lazy, then short ones until lengths are even: surplus l_i − l_avg, gap l_avg − l_j
#
# Flow control corrects lengths as well. It is slow but free, because it only redirects new
# messages. So a transfer between serving replicas must be worth its cost. It is if consumers of one
# replica are idle while another replica has more messages than it consumes in a period. It also is
# if a length is so far above the mean that flow control would need several periods. In a period
# with a transfer flow control leaves lengths alone (`correct_lengths=False`), so that the surplus
# is not corrected twice.


@dataclass(frozen=True)
class TransferSettings:
    """The settings that say when a transfer between serving replicas is worth its cost."""

    # Whole segments move; a transaction for fewer messages than this is not worth it.
    messages_min: int = 16
    # Fraction of the mean length; a surplus above it counts as uneven while no consumer is idle.
    uneven: float = 0.5
    # Periods that flow control may take to even out a surplus without a transfer.
    periods: float = 5.0
    # Transfers per period; each is one transaction.
    pairs_max: int = 64


DEFAULT_TRANSFER_SETTINGS = TransferSettings()


def exchanges(
    replicas: Sequence[ReplicaSample],
    alias_waiting: int,
    shares: Mapping[int, float],
    period_s: float,
    worth: TransferSettings = DEFAULT_TRANSFER_SETTINGS,
) -> list[Exchange]:
    """Return the transfers to start in this period; the list is usually empty.

    `alias_waiting` is the number of messages in the alias, `shares` the shares of the next
    period.
    """
    serving = [one for one in replicas if one.reachable and one.state is ReplicaState.SERVING]
    open_ = [one for one in serving if one.is_attended] or serving
    if not open_:
        return []
    moves = []
    if alias_waiting > 0:
        numbers = {one.number for one in open_}
        parts = {number: share for number, share in shares.items() if number in numbers}
        dealt = Splitter(parts or dict.fromkeys(numbers, 1.0)).deal(alias_waiting)
        moves += [
            Exchange(source=ALIAS, target=target, count=count)
            for target, count in dealt.items()
            if target != ALIAS
        ]
    length = {one.number: one.waiting for one in open_}
    going = [
        one
        for one in replicas
        if one.state is ReplicaState.DRAINING and one.reachable and one.waiting and not one.share
    ]
    # Messages of an unattended replica would wait for ever: they are too few to count as uneven,
    # and the replica has no consumers.
    if len(open_) < len(serving):
        going += [one for one in serving if one.waiting and not one.is_attended]
    if going:
        surplus = [(one.waiting, one.number) for one in going]
        total = sum(length.values()) + sum(amount for amount, _ in surplus)
        moves += _matched(surplus, _gaps(length, total), 1)
    elif len(open_) > 1 and _is_worth_it(open_, period_s, worth):
        mean = sum(length.values()) / len(length)
        surplus = [
            (math.floor(amount - mean), number)
            for number, amount in length.items()
            if amount > mean
        ]
        lazy = {one.number for one in open_ if one.waiting_consumers and not one.waiting}
        gaps = [
            (math.ceil(mean - amount), number) for number, amount in length.items() if amount < mean
        ]
        gaps.sort(key=lambda gap: (gap[1] not in lazy, -gap[0], gap[1]))
        moves += _matched(surplus, gaps, worth.messages_min)
    return moves[: worth.pairs_max]


def _is_worth_it(open_: Sequence[ReplicaSample], period_s: float, worth: TransferSettings) -> bool:
    mean = sum(one.waiting for one in open_) / len(open_)
    lazy = any(one.waiting_consumers and not one.waiting for one in open_)
    for one in open_:
        surplus = one.waiting - mean
        if surplus < worth.messages_min:
            continue
        consumed = one.consumed_per_s * period_s
        if lazy and one.waiting > consumed:
            return True
        if surplus > worth.uneven * mean and surplus > worth.periods * consumed:
            return True
    return False


def _gaps(length: Mapping[int, int], total: int) -> list[tuple[int, int]]:
    """Return how many messages each replica lacks to the common level, the emptiest first."""
    level = 0.0
    left = total
    ordered = sorted(length.items(), key=lambda item: (-item[1], item[0]))
    for index, (_, amount) in enumerate(ordered):
        level = left / (len(ordered) - index)
        if amount <= level:
            break
        # This replica is above the level already: it keeps its messages and receives none.
        left -= amount
    gaps = [
        (math.ceil(level - amount), number) for number, amount in length.items() if amount < level
    ]
    return sorted(gaps, key=lambda gap: (-gap[0], gap[1]))


def _matched(
    surplus: list[tuple[int, int]], gaps: list[tuple[int, int]], least: int
) -> list[Exchange]:
    """Assign the largest surplus to the first gaps, and so on, without transfers below `least`."""
    moves = []
    rooms = iter(gaps)
    room, target = next(rooms, (0, ALIAS))
    for amount, source in sorted(surplus, key=lambda item: (-item[0], item[1])):
        left = amount
        while left > 0 and room > 0:
            count = min(left, room)
            if count >= least:
                moves.append(Exchange(source=source, target=target, count=count))
            left -= count
            room -= count
            if not room:
                room, target = next(rooms, (0, ALIAS))
    return moves
