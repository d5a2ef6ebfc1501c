"""The queues that a client knows: ids by name, and memberships in logical queues.

A `QueueDirectory` belongs to one client, whose producers, reader and subscriptions share it.

The owner of a logical queue's alias counts the members, assigns each a replica, and pushes changes.
It keeps them in memory only, so a new owner starts without members. The former owner, or the node
in between, then asks the client to join again. That push may get lost. So the client also joins
every 5 s and names its replica.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

from tidegate.client.connection import ClusterConnection
from tidegate.core.errors import NotOwner, RetryLater, TidegateError
from tidegate.core.model import QueueInfo
from tidegate.core.topology import MemberRole, ReplicaInfo, Topology
from tidegate.protocol.catalogue import (
    GetQueueId,
    GetQueueIdResponse,
    GetQueueName,
    GetQueueNameResponse,
)
from tidegate.protocol.cluster import (
    Join,
    JoinAgain,
    JoinResponse,
    Leave,
    Migrated,
    TopologyChanged,
)
from tidegate.protocol.packet import Packet

REFRESH_S = 5.0
_BACKOFF_FIRST_S = 0.02
_BACKOFF_MAX_S = 1.0


class QueueDirectory:
    """Ids of queues by name, which of them are logical queues, and memberships in them."""

    def __init__(self, connection: ClusterConnection) -> None:
        self._connection = connection
        # Ids by name. Hot paths read this directly.
        self.ids: dict[str | int, int] = {}
        # Ids of logical queues among the queues above.
        self.logical_ids: set[int] = set()
        # Memberships of this client's producers and consumers in logical queues.
        self.memberships: list[QueueMembership] = []

    async def id_of(self, queue: str | int) -> int:
        """Return the id of a queue by name; an id is returned unchanged."""
        if isinstance(queue, int):
            return queue
        known = self.ids.get(queue)
        if known is None:
            known = (await self.find(queue)).queue_id
        return known

    async def find(self, queue: str | int) -> QueueInfo:
        """Look a queue up at a node; raise `QueueNotExisting` if there is none."""
        if isinstance(queue, int):
            packet = (await self._connection.request(GetQueueName(queue))).packet
            assert isinstance(packet, GetQueueNameResponse)
            return self.note(packet.queue)
        packet = (await self._connection.request(GetQueueId(queue))).packet
        assert isinstance(packet, GetQueueIdResponse)
        return self.note(packet.queue)

    def note(self, info: QueueInfo) -> QueueInfo:
        """Cache the id of a queue, and whether it is a logical queue."""
        self.ids[info.name] = info.queue_id
        if info.elastic:
            self.logical_ids.add(info.queue_id)
        else:
            self.logical_ids.discard(info.queue_id)
        return info

    def forget(self, queue: str) -> None:
        self.ids.pop(queue, None)

    def forget_id(self, queue_id: int) -> None:
        self.ids = {name: known for name, known in self.ids.items() if known != queue_id}

    def on_push(self, packet: Packet) -> None:
        """Pass a push about a logical queue to the memberships that it concerns."""
        for membership in list(self.memberships):
            if isinstance(packet, TopologyChanged):
                if membership.queue_id == packet.topology.queue_id:
                    membership.learn(packet.topology)
            elif isinstance(packet, Migrated):
                if membership.is_meant(packet):
                    membership.moved(packet.replica_id)
            elif isinstance(packet, JoinAgain) and membership.queue_id == packet.queue_id:
                membership.join_again()


# Membership of a producer or consumer in a logical queue.


class MembershipListener(Protocol):
    """The producer or subscription that a membership belongs to."""

    def on_topology(self) -> None:
        """Apply the topology or the assigned replica, one of which may have changed."""

    def on_join_refused(self, error: TidegateError) -> None:
        """Handle a refusal that a retry cannot cure; the membership has ended."""


class QueueMembership:
    """One producer or consumer of a logical queue, and the replica assigned to it."""

    def __init__(
        self,
        connection: ClusterConnection,
        queues: QueueDirectory,
        listener: MembershipListener,
        queue_id: int,
        role: MemberRole,
        member: int,
        *,
        wanted: int | None = None,
        is_bound: bool = False,
    ) -> None:
        self._connection = connection
        self._queues = queues
        self._listener = listener
        self.queue_id = queue_id
        self.role = role
        self.member = member
        self._wanted = wanted
        # Whether only `wanted` will do, as for a worker that was started beside its replica.
        self._is_bound = is_bound
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
        self._queues.memberships.append(self)
        self._joining = self._connection.spawn(self._keep_joined())

    def join_again(self, *, elsewhere: bool = False) -> None:
        """Join now, after a reconnect or because the assigned replica does not serve this client.

        `elsewhere` gives up the assigned replica.
        """
        if elsewhere:
            self.replica_id = 0
        self._again.set()

    def end(self) -> None:
        """Receive no more pushes."""
        if self in self._queues.memberships:
            self._queues.memberships.remove(self)

    async def leave(self) -> None:
        self.end()
        if self._joining is not None:
            self._joining.cancel()
        transport = self._connection.transport
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
                transport = await self._connection.connected()
                answered = await transport.request(join)
            except RetryLater as refusal:
                if isinstance(refusal, NotOwner) and await self._is_plain():
                    self._listener.on_join_refused(refusal)
                    return
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)
                continue
            except TidegateError as error:
                self._listener.on_join_refused(error)
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
            return not (await self._queues.find(self.queue_id)).elastic
        except TidegateError:
            return False

    def learn(self, topology: Topology) -> None:
        """Apply a topology, unless a newer one is known."""
        if self.topology is None or topology.version >= self.topology.version:
            self.topology = topology
        self._listener.on_topology()

    def is_meant(self, packet: Migrated) -> bool:
        mine = (self.queue_id, self.role, self.member)
        return mine == (packet.queue_id, packet.role, packet.member)

    def moved(self, replica_id: int) -> None:
        self.replica_id = replica_id
        self._listener.on_topology()
