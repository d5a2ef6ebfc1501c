"""Transfers of waiting messages between replicas.

    alias    → serving replicas      by share: messages put while no replica could be reached
    draining → shortest replicas     all messages, once the draining replica's share is 0
    idle     → attended replicas     all messages of replicas without consumers, if some have them
    flooded  → lazy, then short ones until lengths are even: surplus l_i − l_avg, gap l_avg − l_j

Flow control corrects lengths as well. It is slow but free, because it only redirects new messages.
So a transfer between serving replicas must be worth its cost. It is if consumers of one replica are
idle while another replica has more messages than it consumes in a period. It also is if a length is
so far above the mean that flow control would need several periods. In a period with a transfer flow
control leaves lengths alone (`correct_lengths=False`), so that the surplus is not corrected twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidegate.core.replication import ALIAS, ReplicaState
from tidegate.core.steering import Exchange, ReplicaSample
from tidegate.laws.splitter import Splitter


@dataclass(frozen=True)
class Worth:
    """The settings that say when a transfer between serving replicas is worth its cost."""

    # Whole segments move; a transaction for fewer messages than this is not worth it.
    messages_min: int = 16
    # Fraction of the mean length; a surplus above it counts as uneven while no consumer is idle.
    uneven: float = 0.5
    # Periods that flow control may take to even out a surplus without a transfer.
    periods: float = 5.0
    # Transfers per period; each is one transaction.
    pairs_max: int = 64


DEFAULT_WORTH = Worth()


def exchanges(
    replicas: Sequence[ReplicaSample],
    alias_waiting: int,
    shares: Mapping[int, float],
    period_s: float,
    worth: Worth = DEFAULT_WORTH,
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


def _is_worth_it(open_: Sequence[ReplicaSample], period_s: float, worth: Worth) -> bool:
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
