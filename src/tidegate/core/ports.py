"""What the rooms above ask of the rooms below: the store, and the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from tidegate.core.fleet import FleetStore
from tidegate.core.hosting import HostingStore
from tidegate.core.model import (
    DEFAULT_POLICY,
    ClientInfo,
    Failure,
    Mode,
    QueueInfo,
    QueuePolicy,
)
from tidegate.core.replication import ReplicationStore
from tidegate.core.segment import Segment
from tidegate.core.topic import Filter, TopicInfo
from tidegate.core.users import UserStore


class Clock:
    """Time from outside, so that tests can turn it."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.wall = wall
        self.monotonic = monotonic


class Write:
    """A segment to store, fenced by an epoch, with the batches of producers that it holds."""

    __slots__ = ("batches", "dedup_ids", "epoch", "producers", "segment")

    def __init__(
        self,
        segment: Segment,
        epoch: int,
        producers: list[int],
        batches: list[int],
        dedup_ids: list[str] | None = None,
    ) -> None:
        self.segment = segment
        self.epoch = epoch
        self.producers = producers
        self.batches = batches
        # Remembered together with the segment, so that the same ids are not stored again.
        self.dedup_ids = dedup_ids


class Attempt(NamedTuple):
    """A message whose deliveries have failed."""

    failed: int
    # Seconds since 1970 before which it is not delivered again; None: at once.
    due_at: float | None
    failures: list[Failure]


class Settlement:
    """Acknowledgements and failures of one queue, fenced by an epoch."""

    __slots__ = ("attempts", "epoch", "finished", "forgotten", "partly", "queue_id")

    def __init__(self, queue_id: int, epoch: int) -> None:
        self.queue_id = queue_id
        self.epoch = epoch
        # First ids of segments whose last message is done.
        self.finished: list[int] = []
        # First id → done offsets [low, high) of segments that live on.
        self.partly: dict[int, list[tuple[int, int]]] = {}
        # First id and offset → what came of its deliveries so far.
        self.attempts: dict[tuple[int, int], Attempt] = {}
        # First ids of finished segments that had any.
        self.forgotten: list[int] = []


class Target(NamedTuple):
    """One of the queues that a publication goes to, and what differs there."""

    queue_id: int
    epoch: int
    first_id: int
    # Offsets [low, high) that are not for this queue: done before they began.
    done: list[tuple[int, int]]
    dedup_ids: list[str] | None = None


class Publication:
    """The same messages for several queues: their columns and their payload are stored once."""

    __slots__ = ("batches", "messages", "producers", "targets")

    def __init__(
        self, messages: Segment, targets: list[Target], producers: list[int], batches: list[int]
    ) -> None:
        # What all queues share; whose they are and their ids are said by the targets.
        self.messages = messages
        self.targets = targets
        self.producers = producers
        self.batches = batches

    def segment(self, target: Target) -> Segment:
        """The messages as one of the queues has them; the payload is the same object in all."""
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


class Claim:
    """A queue that has become ours."""

    __slots__ = ("epoch", "next_id")

    def __init__(self, epoch: int, next_id: int) -> None:
        self.epoch = epoch
        self.next_id = next_id


class LaneSummary:
    """What the store holds of one lane."""

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
        # When the first of it came, which need not be that with the lowest id.
        self.arrived_at = arrived_at


class Location:
    """Where a queue is served."""

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
    """Truth: the catalogue, who owns what, and the messages.

    Every method may raise Unavailable (nothing is known of the outcome) or LimitReached
    (nothing was stored). Writes return one flag each: True, or False when fenced.
    """

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    # Clients and queues
    # A client belongs to the user that made it; without a user any is found.
    async def register_client(
        self, name: str, mode: Mode, user: str | None = None
    ) -> ClientInfo | None: ...
    async def find_client(
        self, client_id: int | None, name: str | None, user: str | None = None
    ) -> ClientInfo | None: ...
    async def reserve_client(self, name: str) -> int: ...
    async def delete_client(self, client_id: int) -> bool: ...
    async def create_queue(
        self, name: str, durable: bool, policy: QueuePolicy = DEFAULT_POLICY
    ) -> QueueInfo | None: ...
    # With `before` only if it has promised this until now, else ChangedMeanwhile.
    async def set_policy(
        self, queue_id: int, policy: QueuePolicy, before: QueuePolicy | None = None
    ) -> bool: ...
    async def find_queue(self, queue_id: int | None, name: str | None) -> QueueInfo | None: ...
    async def list_queues(self) -> list[QueueInfo]: ...
    async def active_queues(self, client_id: int) -> list[QueueInfo]: ...
    async def delete_queue(self, queue_id: int) -> bool: ...

    # Members and ownership
    async def join(self, name: str, address: str, lease_s: float) -> int: ...
    async def renew(self, member_id: int, lease_s: float) -> bool: ...
    async def leave(self, member_id: int) -> None: ...
    # How often we have joined the store that a queue is in; None: it has not heard of us for a
    # lease, and nothing may be delivered. Another number than when a queue was claimed: it is lost.
    def standing(self, queue_id: int) -> int | None: ...
    async def members(self) -> list[MemberInfo]: ...
    async def locate(self, queue_id: int) -> Location | None: ...
    # Those that a member may claim: not what the living machine of another one is to serve.
    async def orphans(self, member_id: int | None = None) -> list[int]: ...
    async def claim(self, queue_id: int, member_id: int) -> Claim | None: ...
    async def release(self, queue_id: int, epoch: int, heir: int | None) -> bool: ...
    async def reserve_ids(self, queue_id: int, epoch: int, count: int) -> int | None: ...

    # Messages
    # A callback, since every confirm waits for this one: no turn of the loop to spare.
    # Commits of one writer are stored, and answered, in the order they are submitted.
    def submit(
        self,
        writes: Sequence[Write],
        done: Callable[[list[bool] | Exception], None],
        *,
        writer: int = 0,
    ) -> None: ...
    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]: ...
    # All or nothing; False: one of the epochs is no longer its queue's.
    async def transact(
        self,
        writes: Sequence[Write],
        settlements: Sequence[Settlement],
        publications: Sequence[Publication] = (),
    ) -> bool: ...
    # Segments of which every message is done: left by a transaction that could not know it.
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
    # Segments that hold any of these ids, of whatever lane, in order; none that are for later.
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
    # Segments for later, in the order of (due, first id), from behind a place in it.
    async def read_due(
        self, queue_id: int, behind: tuple[float, int], count_max: int, bytes_max: int
    ) -> list[Segment]: ...
    async def count_due(self, queue_id: int) -> int: ...
    # Id → seconds since it was seen.
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
    # With a member, the queue is a new one and goes with a connection to it; None: it goes with
    # none, the queue is made if there is none, and what filter it had is replaced. No answer: the
    # topic is gone, or the name of the new queue is taken.
    async def add_subscription(
        self, topic: str, queue: str, header_filter: Filter | None, member_id: int | None
    ) -> QueueInfo | None: ...
    async def drop_subscription(self, topic: str, queue_id: int) -> bool: ...
    # Queues that went with a connection to a member that is gone.
    async def lost_subscriptions(self) -> list[int]: ...
    # Queue → the address of its living owner.
    async def owners(self, queue_ids: Sequence[int]) -> dict[int, str]: ...
    # Payloads that no segment uses any more; how many there were.
    async def free_payloads(self) -> int: ...
