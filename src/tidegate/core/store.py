"""The interfaces of the store and the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tidegate.core.machines import FleetStore
from tidegate.core.model import (
    DEFAULT_POLICY,
    ClientInfo,
    ClientMode,
    Failure,
    Filter,
    QueueInfo,
    QueuePolicy,
    TopicInfo,
    UserStore,
)
from tidegate.core.segment import Segment
from tidegate.core.services import HostingStore
from tidegate.core.topology import ReplicationStore


class Clock:
    """Wall time and monotonic time, which tests can replace."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.wall = wall
        self.monotonic = monotonic


@dataclass(eq=False, slots=True)
class Write:
    """A segment to store, fenced by an epoch, with the producers' batches in it."""

    segment: Segment
    epoch: int
    producers: list[int]
    batches: list[int]
    # Stored with the segment, so that later messages with these ids are recognised as duplicates.
    dedup_ids: list[str] | None = None


class FailedDelivery(NamedTuple):
    """A message whose deliveries have failed."""

    failed: int
    # Seconds since 1970 before which it must not be delivered again; `None` means at once.
    due_at: float | None
    failures: list[Failure]


class Settlement:
    """Acknowledgements and failures of one queue, fenced by an epoch."""

    __slots__ = ("attempts", "epoch", "finished", "forgotten", "partly", "queue_id")

    def __init__(self, queue_id: int, epoch: int) -> None:
        self.queue_id = queue_id
        self.epoch = epoch
        # First ids of segments whose last message was settled.
        self.finished: list[int] = []
        # By first id: settled offsets [low, high) of segments with unsettled messages.
        self.partly: dict[int, list[tuple[int, int]]] = {}
        # By first id and offset: the failures so far.
        self.attempts: dict[tuple[int, int], FailedDelivery] = {}
        # First ids of finished segments that had failures.
        self.forgotten: list[int] = []


class PublicationTarget(NamedTuple):
    """One of the queues of a publication, with the values that differ per queue."""

    queue_id: int
    epoch: int
    first_id: int
    # Offsets [low, high) of messages that do not match this queue's filter; stored as settled.
    done: list[tuple[int, int]]
    dedup_ids: list[str] | None = None


class Publication:
    """The same messages for several queues; columns and payload are stored once."""

    __slots__ = ("batches", "messages", "producers", "targets")

    def __init__(
        self,
        messages: Segment,
        targets: list[PublicationTarget],
        producers: list[int],
        batches: list[int],
    ) -> None:
        # What all queues share. Queue id and message ids are those of the targets.
        self.messages = messages
        self.targets = targets
        self.producers = producers
        self.batches = batches

    def segment(self, target: PublicationTarget) -> Segment:
        """Return the messages as a segment of one target; all segments share the payload."""
        messages = self.messages
        segment = Segment(
            queue_id=target.queue_id,
            first_id=target.first_id,
            priority=messages.priority,
            arrived_at=messages.arrived_at,
            lengths=messages.lengths,
            payload=messages.payload,
            senders=messages.senders,
            receivers=messages.receivers,
            contexts=messages.contexts,
            attributes=messages.attributes,
            due_at=messages.due_at,
        )
        for low, high in target.done:
            segment.mark_done(low, high)
        return segment


class ClaimedQueue:
    """A queue that this node now owns."""

    __slots__ = ("epoch", "next_id")

    def __init__(self, epoch: int, next_id: int) -> None:
        self.epoch = epoch
        self.next_id = next_id


class LaneSummary:
    """A summary of one lane in the store."""

    __slots__ = (
        "addressed",
        "arrived_at",
        "count",
        "first_id",
        "last_id",
        "payload_bytes",
        "priority",
    )

    def __init__(
        self,
        priority: int,
        addressed: bool,
        first_id: int,
        last_id: int,
        count: int,
        payload_bytes: int,
        arrived_at: float,
    ) -> None:
        self.priority = priority
        self.addressed = addressed
        self.first_id = first_id
        self.last_id = last_id
        self.count = count
        self.payload_bytes = payload_bytes
        # When its first message arrived, which is not always the message with the lowest id.
        self.arrived_at = arrived_at


class Location:
    """The owner and address of a queue."""

    __slots__ = ("address", "alive", "owner", "queue")

    def __init__(
        self, queue: QueueInfo, owner: int | None, address: str | None, alive: bool
    ) -> None:
        self.queue = queue
        self.owner = owner
        self.address = address
        self.alive = alive


class MemberInfo:
    """A node as the catalogue knows it."""

    __slots__ = ("address", "alive", "member_id", "name", "queues")

    def __init__(self, member_id: int, name: str, address: str, alive: bool, queues: int) -> None:
        self.member_id = member_id
        self.name = name
        self.address = address
        self.alive = alive
        self.queues = queues


class Store(UserStore, ReplicationStore, FleetStore, HostingStore, Protocol):
    """The store: catalogue, ownership of queues, and messages.

    Every method may raise `Unavailable` (the result is not known) or `LimitReached` (nothing was
    stored). Writes return a flag each: `True`, or `False` if the epoch is out of date.
    """

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    # Clients and queues
    # A client belongs to the user that registered it. Without a user, the search finds any client.
    async def register_client(
        self, name: str, mode: ClientMode, user: str | None = None
    ) -> ClientInfo | None: ...
    async def find_client(
        self, client_id: int | None, name: str | None, user: str | None = None
    ) -> ClientInfo | None: ...
    async def reserve_client(self, name: str) -> int: ...
    async def delete_client(self, client_id: int) -> bool: ...
    async def create_queue(
        self, name: str, durable: bool, policy: QueuePolicy = DEFAULT_POLICY
    ) -> QueueInfo | None: ...
    # With `before`, changes the policy only if it equals `before`, else raises ChangedMeanwhile.
    async def set_policy(
        self, queue_id: int, policy: QueuePolicy, before: QueuePolicy | None = None
    ) -> bool: ...
    async def find_queue(self, queue_id: int | None, name: str | None) -> QueueInfo | None: ...
    async def list_queues(self) -> list[QueueInfo]: ...
    async def active_queues(self, client_id: int) -> list[QueueInfo]: ...
    async def delete_queue(self, queue_id: int) -> bool: ...

    # Nodes and ownership
    async def join(self, name: str, address: str, lease_s: float) -> int: ...
    async def renew(self, member_id: int, lease_s: float) -> bool: ...
    async def leave(self, member_id: int) -> None: ...
    # How many times this node has joined the store of the queue. `None` means that the node's lease
    # in that store has lapsed, so it must deliver nothing. A number that differs from the one at
    # the claim means that the claim is lost.
    def membership_epoch(self, queue_id: int) -> int | None: ...
    async def members(self) -> list[MemberInfo]: ...
    async def locate(self, queue_id: int) -> Location | None: ...
    # Unowned queues that a node may claim, except those assigned to a machine that lives elsewhere.
    async def orphans(self, member_id: int | None = None) -> list[int]: ...
    async def claim(self, queue_id: int, member_id: int) -> ClaimedQueue | None: ...
    async def release(self, queue_id: int, epoch: int, heir: int | None) -> bool: ...
    async def reserve_ids(self, queue_id: int, epoch: int, count: int) -> int | None: ...

    # Messages
    # It takes a callback, since every confirmation waits for it and a turn of the event loop would
    # cost time. Commits with the same `writer` are stored and answered in the order of their
    # submission.
    def submit(
        self,
        writes: Sequence[Write],
        done: Callable[[list[bool] | Exception], None],
        *,
        writer: int = 0,
    ) -> None: ...
    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]: ...
    # All or nothing; `False` means that one of the epochs is out of date.
    async def transact(
        self,
        writes: Sequence[Write],
        settlements: Sequence[Settlement],
        publications: Sequence[Publication] = (),
    ) -> bool: ...
    # Delete segments whose messages are all settled, which a transaction may leave behind.
    async def drop_done(self, queue_id: int, epoch: int) -> bool: ...
    async def stored(self, queue_id: int, first_ids: list[int]) -> set[int]: ...
    async def lanes(self, queue_id: int) -> list[LaneSummary]: ...
    async def read_lane(
        self,
        queue_id: int,
        priority: int,
        addressed: bool,
        from_id: int,
        to_id: int,
        count_max: int,
        bytes_max: int,
    ) -> list[Segment]: ...
    # Segments of all lanes that hold any of these ids, in order; without delayed messages.
    async def read_between(
        self, queue_id: int, from_id: int, to_id: int, count_max: int, bytes_max: int
    ) -> list[Segment]: ...
    async def find_segments(
        self,
        queue_id: int,
        from_id: int,
        receiver: int,
        sender: int | None,
        context: int | None,
        priority: int | None,
        count_max: int,
    ) -> list[Segment]: ...
    # Delayed segments in the order of (due, first id), after the position `behind`.
    async def read_due(
        self, queue_id: int, behind: tuple[float, int], count_max: int, bytes_max: int
    ) -> list[Segment]: ...
    async def count_due(self, queue_id: int) -> int: ...
    # By dedup id: seconds since it was seen.
    async def dedup_ids(self, queue_id: int, newer_than_s: float) -> dict[str, float]: ...
    async def forget_dedup(self) -> int: ...
    async def marks(self, queue_id: int) -> dict[int, list[tuple[int, int]]]: ...
    async def forget_marks(self, older_than_s: float) -> int: ...
    async def purge(self, queue_id: int, epoch: int, below_id: int, kept: list[int]) -> bool: ...

    # Topics
    async def create_topic(self, name: str) -> TopicInfo | None: ...
    async def delete_topic(self, name: str) -> bool: ...
    async def find_topic(self, name: str) -> TopicInfo | None: ...
    async def list_topics(self) -> list[TopicInfo]: ...
    # With `member_id`, create a new temporary queue, which is deleted with a connection to that
    # node. With `None`, create the queue if there is none, and replace its filter. Return `None` if
    # the topic does not exist, or if the name of the new queue is taken.
    async def add_subscription(
        self, topic: str, queue: str, header_filter: Filter | None, member_id: int | None
    ) -> QueueInfo | None: ...
    async def drop_subscription(self, topic: str, queue_id: int) -> bool: ...
    # Temporary queues whose node has failed.
    async def lost_subscriptions(self) -> list[int]: ...
    # By queue id: the address of its living owner.
    async def owners(self, queue_ids: Sequence[int]) -> dict[int, str]: ...
    # Delete payloads that no segment uses; return their number.
    async def free_payloads(self) -> int: ...
