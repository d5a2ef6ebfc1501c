"""Logical queues and their replicas.

    orders            the alias: a queue with number 0, whose name producers and consumers use
    orders#1 orders#2 its replicas: queues with an owner, an epoch and a store of their own

A replica is a queue: leases, fencing, segments and marks work the same. This module adds which
queues belong together, which share of new messages each replica gets, and which replica is assigned
to messages that must stay together. The high bits of a queue id are the number of its store.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from tidegate.core.errors import ChangedMeanwhile
from tidegate.core.scaling import Scaling

# The queue ids of store n start at n << STORE_SHIFT, so the id of a queue identifies its store.
STORE_SHIFT = 24
# The number of the alias, where the number of a replica is expected.
ALIAS = 0
# Groups, receivers and dedup ids are hashed to this many slots. A slot is assigned to one replica.
HOMES = 64
REPLICA_MARK = "#"


class Role(enum.StrEnum):
    """The role in which a client joins a logical queue."""

    PRODUCER = "producer"
    CONSUMER = "consumer"


class ReplicaState(enum.StrEnum):
    """The state of a replica."""

    STARTING = "starting"  # it exists, and no node serves it yet
    SERVING = "serving"
    DRAINING = "draining"  # it gets no new messages and clients, and is removed when empty


class ReplicaPlace(msgspec.Struct, array_like=True, frozen=True):
    """A replica as the catalogue knows it."""

    queue_id: int
    number: int
    state: ReplicaState = ReplicaState.STARTING
    # Its share of new messages, 0 to 1. The shares of all replicas add up to 1, or all are 0.
    share: float = 0.0
    # The machine that is to serve it; `None` means any node.
    machine_id: int | None = None
    # The address of its living owner; `None` means that no node serves it.
    address: str | None = None

    @property
    def store_number(self) -> int:
        return self.queue_id >> STORE_SHIFT


class Topology(msgspec.Struct, array_like=True, frozen=True):
    """The replicas of a logical queue, and where its messages go."""

    queue_id: int
    queue: str
    # Grows with every change of the fields below.
    version: int
    scaling: Scaling
    replicas: list[ReplicaPlace] = []
    # The number of a replica for each assignment slot. A negative number means that the slot is
    # moving to that replica and is closed: replicas hand over its messages and accept no new ones,
    # so that no message overtakes another. The leader opens it when no other replica has messages
    # of it.
    homes: list[int] = []

    def replica(self, number: int) -> ReplicaPlace | None:
        return next((place for place in self.replicas if place.number == number), None)

    def home_of(self, key: str | int) -> int | None:
        """Return the number of the replica assigned to a group or receiver.

        `None` means that the queue has no assignments.
        """
        if not self.homes:
            return None
        return abs(self.homes[home_index(key)])

    def is_home(self, number: int) -> bool:
        """Return whether any slot is assigned to a replica, or moving to it."""
        return number in self.homes or -number in self.homes


def home_index(key: str | int) -> int:
    """Return the assignment slot of a group (by name) or receiver (by id).

    All programs compute the same slot.
    """
    return zlib.crc32(str(key).encode()) % HOMES


def home_key(receiver: int | None, group: str | None, dedup_id: str | None) -> str | int | None:
    """Return the key of a message's assignment slot; `None` if it may go to any replica.

    The receiver takes precedence, since receivers read at their assigned replica.
    """
    return receiver if receiver is not None else group or dedup_id


def are_together(queue_id: int, other_id: int) -> bool:
    """Return whether two queues are in the same store, so that one transaction can change both."""
    return queue_id >> STORE_SHIFT == other_id >> STORE_SHIFT


def scaled_by_another(queue: int | str) -> ChangedMeanwhile:
    """Return the error for the second of two clients that change a scaling at the same time."""
    return ChangedMeanwhile(
        f"somebody else has changed how queue {queue!r} scales meanwhile: look at it, and say it "
        "again"
    )


def replica_name(queue: str, number: int) -> str:
    return f"{queue}{REPLICA_MARK}{number}"


def logical_name(name: str) -> str:
    """Return the name that users know: `orders` for `orders#2`."""
    head, mark, tail = name.rpartition(REPLICA_MARK)
    return head if mark and head and tail.isdigit() else name


class Move(NamedTuple):
    """Whole segments that move from one queue to another, fenced by both epochs."""

    # Unique, made by the mover. A move that was copied under it is not copied again, and a refused
    # move may stay refused. Use the same id again only after an unknown result.
    move_id: str
    source: int
    source_epoch: int
    target: int
    target_epoch: int
    first_ids: Sequence[int]
    # Ids in the target, from a block that its owner has reserved.
    new_first_ids: Sequence[int]


class ReplicationStore(Protocol):
    """The part of a store that keeps logical queues.

    Changes need the leader's epoch; an older one raises `StaleEpoch`.
    """

    # `None` makes it a plain queue; returns `False` if there are replicas. With `before`, changes
    # the scaling only if it equals `before` (`None`: plain), else raises ChangedMeanwhile.
    async def set_scaling(
        self, queue_id: int, scaling: Scaling | None, before: Scaling | UnsetType | None = UNSET
    ) -> bool: ...
    async def topology(self, queue_id: int) -> Topology | None: ...
    async def topologies(self) -> list[Topology]: ...
    # Changes after every change of any topology; cheap enough to ask many times a second.
    async def topology_version(self) -> int: ...
    # The number is the smallest that was never used. Without `store_number`, the store with the
    # fewest replicas is used.
    async def add_replica(
        self,
        queue_id: int,
        leader_epoch: int,
        *,
        machine_id: int | None = None,
        store_number: int | None = None,
    ) -> ReplicaPlace | None: ...
    async def assign_replica(
        self, queue_id: int, number: int, machine_id: int | None, leader_epoch: int
    ) -> bool: ...
    async def set_replica_state(
        self, queue_id: int, number: int, state: ReplicaState, leader_epoch: int
    ) -> bool: ...
    # Shares are scaled to a sum of 1, or stay 0. A replica that is not named gets 0.
    async def set_shares(
        self, queue_id: int, shares: dict[int, float], leader_epoch: int
    ) -> bool: ...
    async def set_homes(self, queue_id: int, homes: Sequence[int], leader_epoch: int) -> bool: ...
    # Delete a draining replica. `False` means that messages are still stored in it. Its stored
    # batches stay known (`marks`) until marks are deleted.
    async def retire_replica(self, queue_id: int, number: int, leader_epoch: int) -> bool: ...
    # Replicas that a machine is to serve.
    async def assigned(self, machine_id: int) -> list[ReplicaPlace]: ...
    # One transaction, or a copy and a deletion if the stores differ. Segments that the source no
    # longer has are left out. Returns `False` if an epoch is out of date. `Unavailable`: call again
    # with the same move. `IoFailure`: the result is unknown, and the node that loads the queue
    # completes the move. Another error: nothing was moved.
    async def move(self, move: Move) -> bool: ...
    # Whether a move has reached its target. If not, it never will. For a target that got no answer.
    async def has_arrived(self, move_id: str, target: int) -> bool: ...
    # Complete moves of this queue that a mover left unfinished; its owner calls this when loading
    # it. Returns the number of moves, whose messages are in the target or back in this queue. Call
    # until it returns 0. `Unavailable`: moves are left that cannot be completed now; their messages
    # are not in the queue.
    async def finish_moves(self, queue_id: int, epoch: int) -> int: ...
