"""Membership of a producer or consumer in a logical queue.

The owner of the alias counts the members, assigns each a replica, and pushes changes. It keeps them
in memory only, so a new owner starts without members. The former owner, or the node in between,
then asks the client to join again. That push may get lost. So the client also joins every 5 s and
names its replica.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidegate.core.errors import NotOwner, QueueNotExisting, RetryLater, TidegateError
from tidegate.core.topology import MemberRole, ReplicaInfo, Topology
from tidegate.protocol.cluster import Join, JoinResponse, Leave, Migrated

if TYPE_CHECKING:
    from tidegate.client.consumer import RemoteConsumer
    from tidegate.client.reads import Calls
    from tidegate.client.subscription import ConsumerSet, Subscription


REFRESH_S = 5.0
_BACKOFF_FIRST_S = 0.02
_BACKOFF_MAX_S = 1.0


class QueueMembership:
    """One producer or consumer of a logical queue, and the replica assigned to it."""

    def __init__(
        self,
        client: Calls,
        queue_id: int,
        role: MemberRole,
        member: int,
        *,
        wanted: int | None = None,
        is_bound: bool = False,
        on_news: Callable[[], None],
        on_refused: Callable[[TidegateError], None],
    ) -> None:
        self._client = client
        self.queue_id = queue_id
        self.role = role
        self.member = member
        self._wanted = wanted
        # Whether only `wanted` will do, as for a worker that was started beside its replica.
        self._is_bound = is_bound
        self._on_news = on_news
        self._on_refused = on_refused
        self._again = asyncio.Event()
        self._joining: asyncio.Task[None] | None = None
        self.topology: Topology | None = None
        # The queue id of the assigned replica. 0 means all replicas for a producer, and none yet
        # for a consumer.
        self.replica_id = 0

    @property
    def place(self) -> ReplicaInfo | None:
        """The assigned replica; `None` if there is none."""
        if self.topology is None or not self.replica_id:
            return None
        return next((p for p in self.topology.replicas if p.queue_id == self.replica_id), None)

    def start(self) -> None:
        self._client.add_membership(self)
        self._joining = self._client.spawn(self._keep_joined())

    def join_again(self, *, elsewhere: bool = False) -> None:
        """Join now, after a reconnect or because the assigned replica does not serve this client.

        `elsewhere` gives up the assigned replica.
        """
        if elsewhere:
            self.replica_id = 0
        self._again.set()

    async def leave(self) -> None:
        self._client.drop_membership(self)
        if self._joining is not None:
            self._joining.cancel()
        transport = self._client.link
        if transport is not None and transport.alive:
            # An error means that the owner, which counted this member, is gone.
            with contextlib.suppress(TidegateError):
                await transport.request(Leave(self.queue_id, self.role, self.member))

    async def _keep_joined(self) -> None:
        backoff_s = _BACKOFF_FIRST_S
        while True:
            self._again.clear()
            place = self.place
            wanted = self._wanted if place is None or self._is_bound else place.number
            join = Join(self.queue_id, self.role, self.member, wanted, self._is_bound)
            try:
                transport = await self._client.connected()
                answered = await transport.request(join)
            except RetryLater as refusal:
                if isinstance(refusal, NotOwner) and await self._is_plain():
                    self._on_refused(refusal)
                    return
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)
                continue
            except TidegateError as error:
                self._on_refused(error)
                return
            backoff_s = _BACKOFF_FIRST_S
            assert isinstance(answered.packet, JoinResponse)
            self.replica_id = answered.packet.replica_id
            self.learn(answered.packet.topology)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._again.wait(), REFRESH_S)

    async def _is_plain(self) -> bool:
        """Return whether the queue is plain and thus has no members."""
        try:
            return not (await self._client.queue(self.queue_id)).elastic
        except TidegateError:
            return False

    def learn(self, topology: Topology) -> None:
        """Apply a topology, unless a newer one is known."""
        if self.topology is None or topology.version >= self.topology.version:
            self.topology = topology
        self._on_news()

    def is_meant(self, packet: Migrated) -> bool:
        mine = (self.queue_id, self.role, self.member)
        return mine == (packet.queue_id, packet.role, packet.member)

    def moved(self, replica_id: int) -> None:
        self.replica_id = replica_id
        self._on_news()


# Messages of a logical queue that are addressed to this client.
#
# One replica holds all messages for a receiver. If a subscription is assigned to another replica,
# it has an additional consumer there. That consumer gets only addressed messages and does not count
# as a member. It follows when the assignment changes, and ends when the subscription itself moves
# to that replica.

# The divisor of the subscription's prefetch that gives the prefetch of the additional consumer.
# Addressed messages are seldom many.
_PREFETCH_PART = 8


class AddressedReads:
    """The additional consumer of a subscription for addressed messages."""

    def __init__(self, subscription: Subscription, consumers: ConsumerSet) -> None:
        self._subscription = subscription
        self._consumers = consumers
        self._moving = False
        self.consumer: RemoteConsumer | None = None

    @property
    def prefetch(self) -> int:
        return max(self._subscription.prefetch // _PREFETCH_PART, 1)

    def refresh(self) -> None:
        """Start to move the consumer to the right replica, if it is at another one."""
        if not self._moving and self._is_elsewhere():
            self._moving = True
            self._subscription.spawn(self._move())

    def on_consumer_lost(self, consumer: RemoteConsumer) -> None:
        if consumer is self.consumer:
            self.consumer = None

    async def set_prefetch(self) -> None:
        """Adapt to a new prefetch of the subscription."""
        if self.consumer is not None and self.consumer.is_connected:
            await self.consumer.set_prefetch(self.prefetch)

    def _is_elsewhere(self) -> bool:
        return (
            0 if self.consumer is None else self.consumer.queue_id
        ) != self._subscription.home_id()

    async def _move(self) -> None:
        try:
            await self._move_until_done()
        except TidegateError as error:
            self._subscription.fail(error)
        finally:
            self._moving = False

    async def _move_until_done(self) -> None:
        subscription = self._subscription
        backoff_s = _BACKOFF_FIRST_S
        while self._is_elsewhere():
            former, self.consumer = self.consumer, None
            if former is not None:
                self._consumers.retire(former)
            home_id = subscription.home_id()
            if not home_id:
                return
            consumer = await subscription.new_leg_at_home(home_id, self.prefetch)
            try:
                await consumer.subscribe()
            except (RetryLater, QueueNotExisting):
                # The replica does not serve this client now. Its assignment may have changed.
                subscription.discard_consumer(consumer)
                subscription.join_again()
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)
                continue
            except BaseException:
                subscription.discard_consumer(consumer)
                consumer.abandon()
                raise
            if consumer.lost:
                continue
            self.consumer = consumer
            if not subscription.wants_more():
                self._consumers.retire(consumer)
                self.consumer = None
                return
