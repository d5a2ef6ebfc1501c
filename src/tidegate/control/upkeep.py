"""Reconciles a topology with what its replicas report: replica states and assignments.

Two things change besides the number of replicas:

    STARTING → SERVING     the replica's owner answers and, if a machine runs its workers, a
                           consumer is there
    slot → other replica   its replica serves no more, or another has far fewer slots; nothing of
                           the slot was seen in the last samples, and the assignment is open
    closed → open          no member except the assigned replica holds or accepts anything of it

A topology has ASSIGNMENT_SLOTS assignment slots. Each group and each receiver hashes to one of
them, and all its messages go to the replica assigned to this slot, in order. A negative number in
`homes` is a closed assignment: the slot is about to move to that replica.

An assignment moves in two steps, so that no message overtakes another. First it is closed: a member
that still holds messages of the slot hands them over, and no member accepts new ones. When only the
new replica can have any, the assignment is opened. Until then it does not move again; the messages
for the next replica would come from two places, in any order. A busy slot does not move, unless its
replica is draining.

This module is pure: it reads samples and returns changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import NamedTuple

from tidegate.core.replication import ALIAS, HOMES, ReplicaState, Topology
from tidegate.core.steering import Exchange, QueueSample, ReplicaSample

# Samples in which a slot must be empty before it moves. A member with the old topology may still
# accept messages for it, and a slot that stays empty this long is not in constant use.
LOOKS_MIN = 3
# Samples to wait for a draining replica. Then its slots move although they are busy: their messages
# are handed over while the assignment is closed, or end with the consumers that hold them.
LOOKS_PATIENT = 10


class SeenHomes(NamedTuple):
    """What a replica, or the alias, reports about assignment slots."""

    # Slots of which it holds any message.
    held: Collection[int]
    # Slots for which it accepts puts, or holds messages that precede all later puts.
    ahead: Collection[int]


# The report of a replica by its number, or of ALIAS; None if its owner did not answer.
Seen = Callable[[int], SeenHomes | None]


class Upkeep:
    """Reconciles the topology of one logical queue."""

    def __init__(self) -> None:
        # Consecutive samples in which a slot was empty.
        self._empty_looks = [0] * HOMES
        # Consecutive samples in which the slot's replica was draining.
        self._going_looks = [0] * HOMES

    def serving(self, topology: Topology, sample: QueueSample) -> list[int]:
        """Return the numbers of starting replicas that can serve from now on."""
        has_worker = topology.scaling.worker is not None
        return [
            replica.number
            for replica in sample.replicas
            if replica.state is ReplicaState.STARTING
            and replica.reachable
            and (replica.consumers > 0 or not has_worker or replica.machine_id is None)
        ]

    def homes(self, topology: Topology, seen: Seen) -> list[int] | None:
        """Return the new assignment of every slot; None if nothing changes.

        Empty means that the alias holds all groups and receivers again, because the last replica
        drains. Call it once per period: it counts the samples in which slots were empty.
        """
        serving = [p.number for p in topology.replicas if p.state is ReplicaState.SERVING]
        if len(topology.homes) != HOMES:
            return [-serving[index % len(serving)] for index in range(HOMES)] if serving else None
        homes = self._opened(topology, seen)
        self._look(topology, seen)
        if not serving:
            # The last replicas drain. The alias takes over all slots once they are empty and open.
            is_over = all(p.state is ReplicaState.DRAINING for p in topology.replicas)
            is_empty = min(self._empty_looks) >= LOOKS_MIN and min(homes) > 0
            return [] if is_over and is_empty else None
        counts = Counter(dict.fromkeys(serving, 0))
        counts.update(abs(number) for number in homes if abs(number) in counts)
        least = min(counts.values())
        for index, home in enumerate(homes):
            number = abs(home)
            if home < 0 and topology.replica(number) is not None:
                # Parts of the slot may be in the new replica and parts on the way. A second move
                # would deliver them to the next replica from two places, in any order.
                continue
            if home > 0 and not self._may_leave(index):
                continue
            if number in counts and counts[number] - least <= 1:
                continue
            poorest = min(serving, key=lambda one: (counts[one], one))
            least = counts[poorest]
            if number not in counts:
                homes[index] = -poorest
                counts[poorest] += 1
            elif counts[number] - counts[poorest] > 1:
                homes[index] = -poorest
                counts[number] -= 1
                counts[poorest] += 1
        return None if homes == topology.homes else homes

    def _may_leave(self, index: int) -> bool:
        return self._empty_looks[index] >= LOOKS_MIN or self._going_looks[index] >= LOOKS_PATIENT

    def _opened(self, topology: Topology, seen: Seen) -> list[int]:
        """Return the assignments; open each one whose slot only the assigned replica still has.

        A member that did not answer keeps all assignments closed, except those to itself.
        """
        homes = list(topology.homes)
        if all(home > 0 for home in homes):
            return homes
        ahead = {
            number: None if (said := seen(number)) is None else frozenset(said.ahead)
            for number in (ALIAS, *(place.number for place in topology.replicas))
        }
        silent = {number for number, indices in ahead.items() if indices is None}
        elsewhere: dict[int, set[int]] = {}
        for number, indices in ahead.items():
            for index in indices or ():
                elsewhere.setdefault(index, set()).add(number)
        for index, home in enumerate(homes):
            if home < 0 and elsewhere.get(index, set()) | silent <= {-home}:
                homes[index] = -home
        return homes

    def _look(self, topology: Topology, seen: Seen) -> None:
        holdings: dict[int, Collection[int] | None] = {
            place.number: None if (said := seen(place.number)) is None else said.held
            for place in topology.replicas
        }
        going = {p.number for p in topology.replicas if p.state is ReplicaState.DRAINING}
        for index, number in enumerate(topology.homes):
            # A replica that is gone holds nothing.
            holding = holdings.get(abs(number), ())
            is_empty = holding is not None and index not in holding
            self._empty_looks[index] = self._empty_looks[index] + 1 if is_empty else 0
            is_going = holding is not None and abs(number) in going
            self._going_looks[index] = self._going_looks[index] + 1 if is_going else 0


def homecoming(sample: QueueSample) -> list[Exchange]:
    """Return the transfers to the alias when all replicas drain.

    No replica is left to take over the messages, so the alias holds them. Empty if any replica
    stays or is ordered.
    """
    if sample.pending or any(one.state is not ReplicaState.DRAINING for one in sample.replicas):
        return []
    return [
        Exchange(source=one.number, target=ALIAS, count=one.waiting)
        for one in sample.replicas
        if one.reachable and one.waiting and not one.share
    ]


def missing_workers(topology: Topology, sample: QueueSample) -> list[ReplicaSample]:
    """Return the replicas that only wait for their workers; `tidegate explain` shows them."""
    if topology.scaling.worker is None:
        return []
    return [
        replica
        for replica in sample.replicas
        if replica.state is ReplicaState.STARTING
        and replica.reachable
        and replica.machine_id is not None
        and not replica.consumers
    ]


def out_of_reach(topology: Topology, sample: QueueSample) -> list[str]:
    """Describe the replicas that have served and cannot be reached, each with its store.

    The store is the likely reason.
    """
    away = {
        replica.number
        for replica in sample.replicas
        if not replica.reachable and replica.state is not ReplicaState.STARTING
    }
    return [
        f"replica {place.number} in store {place.store_number}"
        for place in topology.replicas
        if place.number in away
    ]
