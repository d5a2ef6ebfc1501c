"""A logical queue and the replicas that it is spread over.

    orders            the alias: a queue of its own, number 0, which producers know by name
    orders#1 orders#2 its replicas: queues too, each with an owner, an epoch and a store of its own

Everything that holds for a queue holds for a replica: lease, fencing, segments, marks. What is
logical is only this file: which queues belong together, what part of new messages each is to get,
and which of them holds what has to stay together. The high bits of a queue's id name its store.
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

# Queue ids of store n are n << STORE_SHIFT and up: whoever has an id knows where to ask.
STORE_SHIFT = 24
# The alias, where a number of a replica is asked for.
ALIAS = 0
# Groups and receivers are spread over so many homes; what is in one of them stays together.
HOMES = 64
REPLICA_MARK = "#"


class Role(enum.StrEnum):
    """What a client comes to a queue for."""

    PRODUCER = "producer"
    CONSUMER = "consumer"


class ReplicaState(enum.StrEnum):
    """How far a replica is from serving."""

    STARTING = "starting"  # it has a place; nobody serves it yet
    SERVING = "serving"
    DRAINING = "draining"  # it gets no new messages and no new clients, and is to go when empty


class ReplicaPlace(msgspec.Struct, array_like=True, frozen=True):
    """A replica as the catalogue knows it."""

    queue_id: int
    number: int
    state: ReplicaState = ReplicaState.STARTING
    # Of new messages, 0 to 1; those of all replicas add up to 1, or all are 0.
    share: float = 0.0
    # The machine that is to serve it; None: any node may.
    machine_id: int | None = None
    # Of its living owner; None: nobody serves it now.
    address: str | None = None

    @property
    def store_number(self) -> int:
        return self.queue_id >> STORE_SHIFT


class Topology(msgspec.Struct, array_like=True, frozen=True):
    """Where the messages of a logical queue are and go."""

    queue_id: int
    queue: str
    # Grows with every change of anything below.
    version: int
    scaling: Scaling
    replicas: list[ReplicaPlace] = []
    # HOMES numbers of replicas: where groups and receivers are at home. Below 0: they are about to
    # be there. Whoever has something of such a home hands it over, and nobody takes anything new
    # of it, so that nothing overtakes; the leader opens it once nothing of it is elsewhere.
    homes: list[int] = []

    def replica(self, number: int) -> ReplicaPlace | None:
        return next((place for place in self.replicas if place.number == number), None)

    def home_of(self, key: str | int) -> int | None:
        """The number of the replica that holds everything of a group, or for a receiver."""
        if not self.homes:
            return None
        return abs(self.homes[home_index(key)])

    def is_home(self, number: int) -> bool:
        """Whether anything is at home at a replica, or about to be."""
        return number in self.homes or -number in self.homes


def home_index(key: str | int) -> int:
    """Which of the homes a group (by name) or a receiver (by id) has; the same everywhere."""
    return zlib.crc32(str(key).encode()) % HOMES


def home_key(receiver: int | None, group: str | None, dedup_id: str | None) -> str | int | None:
    """What says where a message has its home; None: it may go to any replica.

    Receivers first, for they read at their home.
    """
    return receiver if receiver is not None else group or dedup_id


def are_together(queue_id: int, other_id: int) -> bool:
    """Whether two queues are in one store, where one transaction can change both."""
    return queue_id >> STORE_SHIFT == other_id >> STORE_SHIFT


def scaled_by_another(queue: int | str) -> ChangedMeanwhile:
    """Of two who change how a queue scales at the same time, the second hears this."""
    return ChangedMeanwhile(
        f"somebody else has changed how queue {queue!r} scales meanwhile: look at it, and say it "
        "again"
    )


def replica_name(queue: str, number: int) -> str:
    return f"{queue}{REPLICA_MARK}{number}"


def logical_name(name: str) -> str:
    """The name that users know: `orders#2` is `orders`."""
    head, mark, tail = name.rpartition(REPLICA_MARK)
    return head if mark and head and tail.isdigit() else name


class Move(NamedTuple):
    """Whole segments that change from one queue to another, fenced by both epochs."""

    # Of the mover's making, unique: what was copied under it is not copied again, and what was
    # refused may stay refused under it. The same again only after an unknown outcome.
    move_id: str
    source: int
    source_epoch: int
    target: int
    target_epoch: int
    first_ids: Sequence[int]
    # In the target, out of a block that its owner has reserved.
    new_first_ids: Sequence[int]


class ReplicationStore(Protocol):
    """The part of a store that knows logical queues. Changes need the leader's epoch.

    A change under an epoch that is no longer the leader's raises StaleEpoch.
    """

    # None ends it: only an alias without replicas can become a plain queue again (else False).
    # With `before` only if it has scaled so until now (None: was plain), else ChangedMeanwhile.
    async def set_scaling(
        self, queue_id: int, scaling: Scaling | None, before: Scaling | UnsetType | None = UNSET
    ) -> bool: ...
    async def topology(self, queue_id: int) -> Topology | None: ...
    async def topologies(self) -> list[Topology]: ...
    # Another one after every change of any topology: cheap to ask for, many times a second.
    async def topology_version(self) -> int: ...
    # With the smallest number that never was; in the given store, or in the one with the fewest.
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
    # Brought to a sum of 1 (or 0); who is not named gets nothing.
    async def set_shares(
        self, queue_id: int, shares: dict[int, float], leader_epoch: int
    ) -> bool: ...
    async def set_homes(self, queue_id: int, homes: Sequence[int], leader_epoch: int) -> bool: ...
    # The end of a draining replica; False: something is still stored in it. What batches it has
    # stored stays known (`marks`) until marks are forgotten.
    async def retire_replica(self, queue_id: int, number: int, leader_epoch: int) -> bool: ...
    # Replicas that a machine is to serve.
    async def assigned(self, machine_id: int) -> list[ReplicaPlace]: ...
    # In one transaction, or copied and then deleted when the stores differ; False: fenced. What
    # the source no longer has is left out. Unavailable: ask again with the same move. IoFailure:
    # nobody knows, and whoever loads the queue finishes it. Another error: nothing was moved.
    async def move(self, move: Move) -> bool: ...
    # Whether a move has come to its target; if not, it never will: for a taker that got no answer.
    async def has_arrived(self, move_id: str, target: int) -> bool: ...
    # Bring to an end what a mover of this queue left half done; its owner calls it when it loads.
    # How many moves; their messages have arrived, or are back in this queue. There may be more
    # until it is 0. Unavailable: there are, none can be ended now, and they are out of the queue.
    async def finish_moves(self, queue_id: int, epoch: int) -> int: ...
