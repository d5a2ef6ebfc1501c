"""The policy "clients": the replica for each client, and the number of replicas for all clients.

    x_i = N_i / N        y_i = M_i / M         N producers, M consumers
    L_i = (N_i + M_i) / C_i                    L_c = max((N + M) / ΣC, resource load)

    R1  x_i > y_i   it floods: seek consumers, shed producers
    R2  x_i < y_i   it drains: seek producers, shed consumers
    R3  L_i > 1     avoid new clients          R4  L_i < 1   ask for clients
    R5  L_c > 1     add capacity               R6  L_c < 1   capacity may shrink

The best distribution gives each replica its fair share f_i = C_i / ΣC, which is 1/k when all are
alike. A new client goes to the replica whose part of the clients, counting the new one, is farthest
below its fair share: n_i / (n + 1) − f_i is smallest. With equal capacities that is the smallest
x_i (or y_i), as in the paper. With unequal capacities it is the choice that leaves the smallest
Σ(x_i − f_i)². Ties go to the smaller L_i (R3, R4), then to the smaller number.

The paper leaves these points open; the law settles them as follows:
- A marked replica takes no new clients and adds no capacity, but its clients count, because they
  need a place elsewhere.
- A full system unmarks a replica before it creates one.
- If several replicas may be removed, the one with the fewest clients is; ties go to the last added.
- Without clients of a role, every share of that role is 0.
- The last replica is never removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from tidegate.core.topology import MemberRole

# Capacity of a replica until it has been learned: the paper's best mix, 1 producer and 2 consumers.
CAPACITY_CLIENTS = 3.0
# Measured load is noisy, so a replica is removed only if the remaining ones stay below this load.
RESOURCE_ROOM = 0.8


class ReplicaLoad(NamedTuple):
    """A replica as the election reads it."""

    number: int
    producers: int = 0
    consumers: int = 0
    capacity_clients: float = CAPACITY_CLIENTS
    # Marked for removal: takes no new clients.
    marked: bool = False
    # Messages in the replica, ready or unacknowledged.
    messages: int = 0

    @property
    def clients(self) -> int:
        return self.producers + self.consumers

    @property
    def load(self) -> float:
        """L_i, the clients relative to the capacity."""
        return self.clients / self.capacity_clients

    @property
    def is_empty(self) -> bool:
        """Whether the replica has no clients and no messages, ready or unacknowledged."""
        return not (self.clients or self.messages)

    def of(self, role: MemberRole) -> int:
        return self.producers if role is MemberRole.PRODUCER else self.consumers


class ClientTransfer(NamedTuple):
    """Clients of one role to move from `source` to `target`."""

    role: MemberRole
    source: int
    target: int
    clients: int


class ElectionChange(NamedTuple):
    """The change that a join, a leave or a periodic check asks for. `None` means no such step."""

    # Replica for the client. If `create` is set, the client goes to the new replica instead.
    elected: int | None = None
    create: bool = False
    unmark: int | None = None
    mark: int | None = None
    remove: int | None = None
    # Whether the inhibition period begins now.
    inhibit: bool = False
    rule: str = ""


def election_load(replicas: Iterable[ReplicaLoad], resource_load: float = 0.0) -> float:
    """Return L_c: clients relative to the unmarked capacity, or `resource_load` if that is larger.

    Without unmarked capacity the load is infinite if there are clients.
    """
    clients = 0
    capacity = 0.0
    for one in replicas:
        clients += one.producers + one.consumers
        if not one.marked:
            capacity += one.capacity_clients
    if capacity <= 0.0:
        return float("inf") if clients else resource_load
    return max(clients / capacity, resource_load)


def elect(role: MemberRole, replicas: Iterable[ReplicaLoad]) -> int | None:
    """Return the number of the replica for a new client of `role`, or `None` if all are marked."""
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


def removable(replicas: Sequence[ReplicaLoad], resource_load: float = 0.0) -> int | None:
    """Return the replica that can be removed without overloading the rest, or `None`.

    A replica qualifies if C_i ≤ ΣC − (N + M) and the resource load stays below `RESOURCE_ROOM`
    without it. The last unmarked replica never qualifies.
    """
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
    role: MemberRole,
    replicas: Sequence[ReplicaLoad],
    *,
    inhibited: bool = False,
    resource_load: float = 0.0,
) -> ElectionChange:
    """Decide what happens before a client of `role` joins (algorithm 1 of the paper)."""
    if not inhibited and election_load(replicas, resource_load) >= 1.0:
        marked = _to_unmark(replicas)
        if marked is None:
            return ElectionChange(create=True, inhibit=True, rule="R5: L_c ≥ 1, a new replica")
        opened = [one._replace(marked=False) if one.number == marked else one for one in replicas]
        return ElectionChange(
            elected=elect(role, opened),
            unmark=marked,
            inhibit=True,
            rule="R5: L_c ≥ 1, a marked replica stays",
        )
    return ElectionChange(elected=elect(role, replicas), rule="elected")


def on_leave(
    number: int,
    replicas: Sequence[ReplicaLoad],
    *,
    inhibited: bool = False,
    resource_load: float = 0.0,
) -> ElectionChange:
    """Decide what happens after a replica lost a client or its last message (algorithm 2)."""
    left = next((one for one in replicas if one.number == number), None)
    if left is not None and left.marked and left.is_empty and len(replicas) > 1:
        return ElectionChange(remove=number, inhibit=True, rule="marked and empty")
    if not inhibited and election_load(replicas, resource_load) < 1.0:
        mark = removable(replicas, resource_load)
        if mark is not None:
            return ElectionChange(mark=mark, rule="R6: L_c < 1, C_i ≤ ΣC − (N + M)")
    return ElectionChange(rule="nothing to change")


def capacity_change(
    replicas: Sequence[ReplicaLoad], *, inhibited: bool = False, resource_load: float = 0.0
) -> ElectionChange:
    """Apply R5 and R6 once per period, after joins and leaves have happened.

    A join tests L_c ≥ 1 before its client counts. Afterwards the same test is L_c > 1.
    """
    if inhibited:
        return ElectionChange(rule="inhibited")
    whole = election_load(replicas, resource_load)
    if whole > 1.0:
        marked = _to_unmark(replicas)
        if marked is not None:
            return ElectionChange(
                unmark=marked, inhibit=True, rule="R5: L_c > 1, a marked replica stays"
            )
        return ElectionChange(create=True, inhibit=True, rule="R5: L_c > 1")
    if whole < 1.0:
        mark = removable(replicas, resource_load)
        if mark is not None:
            return ElectionChange(mark=mark, rule="R6: L_c < 1, C_i ≤ ΣC − (N + M)")
    return ElectionChange(rule="L_c within its bounds")


def client_transfers(role: MemberRole, replicas: Sequence[ReplicaLoad]) -> list[ClientTransfer]:
    """Return the moves of connected clients that R1 and R2 ask for.

    All clients leave marked replicas. Between unmarked replicas a client moves only if that
    brings the distribution nearer to the fair one, so that no client moves back and forth.
    """
    open_ = [one for one in replicas if not one.marked]
    if not open_:
        return []
    total = sum(one.of(role) for one in replicas)
    capacity = sum(one.capacity_clients for one in open_)
    over = {one.number: one.of(role) - total * one.capacity_clients / capacity for one in open_}
    # Excess over the fair share: `needy` has the smallest excess first, `full` the largest first.
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
    return [
        ClientTransfer(role, source, target, count) for (source, target), count in moves.items()
    ]


def _first_true(heap: list[tuple[float, int]], over: dict[int, float], sign: float) -> int:
    """Return the number of the first heap entry that is up to date, and leave it in the heap.

    Outdated entries before it are removed.
    """
    while heap[0][0] != sign * _rounded(over[heap[0][1]]):
        heappop(heap)
    return heap[0][1]


def _to_unmark(replicas: Iterable[ReplicaLoad]) -> int | None:
    """Return the marked replica with the most clients, or `None` if no replica is marked."""
    marked = [one for one in replicas if one.marked]
    if not marked:
        return None
    return max(marked, key=lambda one: (one.clients, -one.number)).number


def _rounded(value: float) -> float:
    # Without rounding, 1/3 + 1/3 − 2/3 would not tie with 0.
    return round(value, 12)
