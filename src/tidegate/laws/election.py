"""Which replica a client goes to, and how many replicas the clients need.

    x_i = N_i / N        y_i = M_i / M         N producers, M consumers
    L_i = (N_i + M_i) / C_i                    L_c = max((N + M) / ΣC, resource load)

    R1  x_i > y_i   it floods: seek consumers, shed producers
    R2  x_i < y_i   it drains: seek producers, shed consumers
    R3  L_i > 1     avoid new clients          R4  L_i < 1   ask for clients
    R5  L_c > 1     add capacity               R6  L_c < 1   capacity may shrink

The best distribution gives each replica its fair share f_i = C_i / ΣC, which is 1/k when all are
alike. A newcomer goes where the part of clients, counted with the newcomer, lies farthest below
the fair share: n_i / (n + 1) − f_i is smallest. With equal capacities that is the smallest x_i (or
y_i), as in the paper; with others it is the choice that leaves the smallest Σ(x_i − f_i)². Ties go
to the smaller L_i (R3, R4), then to the smaller number.

Left open by the paper and settled here: a marked replica takes no clients and counts for no
capacity, but its clients count, for they will need a place; a full system unmarks before it
creates; of several that may go, the one with the fewest clients goes, the last added first; with no
client of a kind every share of it is 0; the last replica never goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from tidegate.core.replication import Role

# What a replica is taken to be best with until it was learned: the paper's 1 producer, 2 consumers.
CAPACITY_CLIENTS = 3.0
# Measured load is noisy: a replica goes only if the others would stay this far from busy.
RESOURCE_ROOM = 0.8


class Standing(NamedTuple):
    """A replica as the election sees it."""

    number: int
    producers: int = 0
    consumers: int = 0
    capacity_clients: float = CAPACITY_CLIENTS
    # To be removed: it takes no clients.
    marked: bool = False
    # Messages in it, ready or unacknowledged.
    messages: int = 0

    @property
    def clients(self) -> int:
        return self.producers + self.consumers

    @property
    def load(self) -> float:
        """L_i."""
        return self.clients / self.capacity_clients

    @property
    def is_empty(self) -> bool:
        """No clients and no messages, ready or unacknowledged."""
        return not (self.clients or self.messages)

    def of(self, role: Role) -> int:
        return self.producers if role is Role.PRODUCER else self.consumers


class Transfer(NamedTuple):
    """Clients that would be better off at another replica."""

    role: Role
    source: int
    target: int
    clients: int


class Change(NamedTuple):
    """What a join, a leave or a look at the whole asks for; each None: nothing."""

    # Where the client goes; `create` says that a new replica comes first, which is then the best.
    elected: int | None = None
    create: bool = False
    unmark: int | None = None
    mark: int | None = None
    remove: int | None = None
    # Whether the inhibition begins now.
    inhibit: bool = False
    rule: str = ""


def load(replicas: Iterable[Standing], resource_load: float = 0.0) -> float:
    """L_c: all clients for the capacity that is to stay, or what the machines are busy with."""
    clients = 0
    capacity = 0.0
    for one in replicas:
        clients += one.producers + one.consumers
        if not one.marked:
            capacity += one.capacity_clients
    if capacity <= 0.0:
        return float("inf") if clients else resource_load
    return max(clients / capacity, resource_load)


def elect(role: Role, replicas: Iterable[Standing]) -> int | None:
    """The replica for a new client of this kind; None: there is none that takes any."""
    open_ = [one for one in replicas if not one.marked]
    if not open_:
        return None
    capacity = sum(one.capacity_clients for one in open_)
    count = sum(one.of(role) for one in open_) + 1
    return min(
        open_,
        key=lambda one: (
            _rounded(one.of(role) / count - one.capacity_clients / capacity),
            _rounded(one.load),
            one.number,
        ),
    ).number


def removable(replicas: Sequence[Standing], resource_load: float = 0.0) -> int | None:
    """The replica that can go without overloading the others: C_i ≤ ΣC − (N + M); None: none."""
    open_ = [one for one in replicas if not one.marked]
    if len(open_) < 2:
        return None
    capacity = sum(one.capacity_clients for one in open_)
    room = capacity - sum(one.clients for one in replicas)
    able = [
        one
        for one in open_
        if one.capacity_clients <= room
        and resource_load * capacity <= RESOURCE_ROOM * (capacity - one.capacity_clients)
    ]
    if not able:
        return None
    return min(able, key=lambda one: (one.clients, -one.number)).number


def on_join(
    role: Role, replicas: Sequence[Standing], *, inhibited: bool = False, resource_load: float = 0.0
) -> Change:
    """Algorithm 1: before a client comes."""
    if not inhibited and load(replicas, resource_load) >= 1.0:
        marked = _to_unmark(replicas)
        if marked is None:
            return Change(create=True, inhibit=True, rule="R5: L_c ≥ 1, a new replica")
        opened = [one._replace(marked=False) if one.number == marked else one for one in replicas]
        return Change(
            elected=elect(role, opened),
            unmark=marked,
            inhibit=True,
            rule="R5: L_c ≥ 1, a marked replica stays",
        )
    return Change(elected=elect(role, replicas), rule="elected")


def on_leave(
    number: int,
    replicas: Sequence[Standing],
    *,
    inhibited: bool = False,
    resource_load: float = 0.0,
) -> Change:
    """Algorithm 2: after a client has gone from replica `number`, or its last message has."""
    left = next((one for one in replicas if one.number == number), None)
    if left is not None and left.marked and left.is_empty and len(replicas) > 1:
        return Change(remove=number, inhibit=True, rule="marked and empty")
    if not inhibited and load(replicas, resource_load) < 1.0:
        mark = removable(replicas, resource_load)
        if mark is not None:
            return Change(mark=mark, rule="R6: L_c < 1, C_i ≤ ΣC − (N + M)")
    return Change(rule="nothing to change")


def provision(
    replicas: Sequence[Standing], *, inhibited: bool = False, resource_load: float = 0.0
) -> Change:
    """R5 and R6 once a period, when joins and leaves have already happened.

    A join tests L_c ≥ 1 before its client counts, so afterwards it is L_c > 1.
    """
    if inhibited:
        return Change(rule="inhibited")
    whole = load(replicas, resource_load)
    if whole > 1.0:
        marked = _to_unmark(replicas)
        if marked is not None:
            return Change(unmark=marked, inhibit=True, rule="R5: L_c > 1, a marked replica stays")
        return Change(create=True, inhibit=True, rule="R5: L_c > 1")
    if whole < 1.0:
        mark = removable(replicas, resource_load)
        if mark is not None:
            return Change(mark=mark, rule="R6: L_c < 1, C_i ≤ ΣC − (N + M)")
    return Change(rule="L_c within its bounds")


def transfers(role: Role, replicas: Sequence[Standing]) -> list[Transfer]:
    """R1 and R2 for clients that are connected: away from marked replicas, then towards fair.

    A client moves only if that brings the distribution nearer to the best one, so that the same
    clients are never moved back and forth.
    """
    open_ = [one for one in replicas if not one.marked]
    if not open_:
        return []
    total = sum(one.of(role) for one in replicas)
    capacity = sum(one.capacity_clients for one in open_)
    over = {one.number: one.of(role) - total * one.capacity_clients / capacity for one in open_}
    # By how much each has more than its due: the neediest first, below the fullest first.
    needy = [(_rounded(more), number) for number, more in over.items()]
    heapify(needy)
    moves: dict[tuple[int, int], int] = {}

    def give(source: int, target: int) -> None:
        over[target] += 1.0
        heappush(needy, (_rounded(over[target]), target))
        moves[source, target] = moves.get((source, target), 0) + 1

    for one in replicas:
        if one.marked:
            for _ in range(one.of(role)):
                give(one.number, _first_true(needy, over, 1.0))
    full = [(-_rounded(more), number) for number, more in over.items()]
    heapify(full)
    while True:
        source = _first_true(full, over, -1.0)
        target = _first_true(needy, over, 1.0)
        if over[source] - over[target] <= 1.0 + 1e-9:
            break
        over[source] -= 1.0
        heappush(full, (-_rounded(over[source]), source))
        heappush(needy, (_rounded(over[source]), source))
        give(source, target)
        heappush(full, (-_rounded(over[target]), target))
    return [Transfer(role, source, target, count) for (source, target), count in moves.items()]


def _first_true(heap: list[tuple[float, int]], over: dict[int, float], sign: float) -> int:
    """The first of a heap whose entry is not outdated; it stays in it."""
    while heap[0][0] != sign * _rounded(over[heap[0][1]]):
        heappop(heap)
    return heap[0][1]


def _to_unmark(replicas: Iterable[Standing]) -> int | None:
    """The marked one that most clients would gain by: it has the most of them still."""
    marked = [one for one in replicas if one.marked]
    if not marked:
        return None
    return max(marked, key=lambda one: (one.clients, -one.number)).number


def _rounded(value: float) -> float:
    # 1/3 + 1/3 − 2/3 is a tie, and not a hair's breadth.
    return round(value, 12)
