"""What a topology needs beside what a law says: replicas that have come up serve, homes follow.

    STARTING → SERVING   its owner answers, and its workers are there if a machine runs them
    home → replica       the one that it has serves no more, or others have far fewer; and nothing
                         of it was seen there in the last few looks; and it is open
    closed → open        nobody but the replica has anything of the home, nor takes it

A home that is busy stays where it is, unless its replica is to go. One that moves
is closed first: who still put something to where it was hands that over before anybody puts to
where it will be. Until then it does not move on, so that what it has comes from one place only,
in order. Pure: what was seen in, what has to change out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import NamedTuple

from tidegate.core.replication import ALIAS, HOMES, ReplicaState, Topology
from tidegate.core.steering import Exchange, QueueSample, ReplicaSample

# Who still has the old topology when a home moves may put there: a home that has been empty for so
# many looks is not one that somebody is putting to all the time.
LOOKS_MIN = 3
# A replica that is to go is waited for so many looks; then its homes leave it, busy or not: while
# they are closed what is there of them goes over, or ends with who holds it.
LOOKS_PATIENT = 10


class SeenHomes(NamedTuple):
    """What a replica, or the alias, says about homes."""

    # Of which it holds anything.
    held: Collection[int]
    # Of which it takes puts, or has what comes before all that is put from now on.
    ahead: Collection[int]


# Of the replica of a number, ALIAS among them; None: its owner did not say.
Seen = Callable[[int], SeenHomes | None]


class Upkeep:
    """Looks after one logical queue."""

    def __init__(self) -> None:
        # For how many looks a home has been empty.
        self._empty_looks = [0] * HOMES
        # For how many its replica has been about to go.
        self._going_looks = [0] * HOMES

    def serving(self, topology: Topology, sample: QueueSample) -> list[int]:
        """Numbers of replicas that serve from now on."""
        has_worker = topology.scaling.worker is not None
        return [
            replica.number
            for replica in sample.replicas
            if replica.state is ReplicaState.STARTING
            and replica.reachable
            and (replica.consumers > 0 or not has_worker or replica.machine_id is None)
        ]

    def homes(self, topology: Topology, seen: Seen) -> list[int] | None:
        """Where groups and receivers are at home from now on; None: where they were."""
        serving = [p.number for p in topology.replicas if p.state is ReplicaState.SERVING]
        if len(topology.homes) != HOMES:
            return [-serving[index % len(serving)] for index in range(HOMES)] if serving else None
        homes = self._opened(topology, seen)
        self._look(topology, seen)
        if not serving:
            # The last ones go: from now on the alias is home to all.
            is_over = all(p.state is ReplicaState.DRAINING for p in topology.replicas)
            is_empty = min(self._empty_looks) >= LOOKS_MIN and min(homes) > 0
            return [] if is_over and is_empty else None
        counts = Counter(dict.fromkeys(serving, 0))
        counts.update(abs(number) for number in homes if abs(number) in counts)
        least = min(counts.values())
        for index, home in enumerate(homes):
            number = abs(home)
            if home < 0 and topology.replica(number) is not None:
                # Part of it may be there, and part on its way: they would come to the next one
                # from two places, in any order.
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
        """The homes, those open of which nobody else has anything, nor takes it."""
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
    """When the last replicas go, nobody is left to take over from them: the alias keeps it."""
    if sample.pending or any(one.state is not ReplicaState.DRAINING for one in sample.replicas):
        return []
    return [
        Exchange(source=one.number, target=ALIAS, count=one.waiting)
        for one in sample.replicas
        if one.reachable and one.waiting and not one.share
    ]


def missing_workers(topology: Topology, sample: QueueSample) -> list[ReplicaSample]:
    """Replicas that wait for their workers only; `tidegate explain` says so."""
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
    """Replicas that have served and that nobody can reach, and the stores that may be why."""
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
