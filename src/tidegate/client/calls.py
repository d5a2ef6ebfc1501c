"""Base of the client: access to the connection, and ids by name."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Literal

from tidegate.client.lifeline import Lifeline
from tidegate.client.link import Answered, Link
from tidegate.client.membership import Membership
from tidegate.core.errors import InvalidValue, TidegateError
from tidegate.core.model import ClientInfo, Mode, Order, QueueInfo
from tidegate.wire.packet import Request
from tidegate.wire.packets.clients import FindClient, FindClientResponse
from tidegate.wire.packets.queues import (
    GetQueueId,
    GetQueueIdResponse,
    GetQueueName,
    GetQueueNameResponse,
)

MODES = {"read-only": Mode.READ_ONLY, "read-write": Mode.READ_WRITE, "admin": Mode.ADMIN}
ORDERS = {"oldest": Order.OLDEST, "priority": Order.PRIORITY}
ModeName = Literal["read-only", "read-write", "admin"]
OrderName = Literal["oldest", "priority"]


class Calls:
    """Calls over the reconnecting connection, with caches of queue and client ids."""

    def __init__(self, lifeline: Lifeline) -> None:
        self._lifeline = lifeline
        self._queue_ids: dict[str, int] = {}
        # Ids of logical queues among the queues above.
        self._elastic_ids: set[int] = set()
        self._client_ids: dict[str, int] = {}
        # Memberships of this client's producers and consumers in logical queues.
        self._memberships: list[Membership] = []

    @property
    def link(self) -> Link | None:
        """The current transport; `None` while disconnected."""
        return self._lifeline.link

    @property
    def reconnect_s(self) -> float:
        """Seconds for which calls wait for a connection."""
        return self._lifeline.reconnect_s

    @property
    def outage(self) -> TidegateError | None:
        """The error with which calls fail at once; `None` in normal operation.

        It is set when the client is closed, has had no node for `reconnect_s` seconds, or was
        rejected by a node.
        """
        return self._lifeline.outage

    @property
    def generation(self) -> int:
        """The number of the current connection; it grows by one with every reconnect."""
        return self._lifeline.generation

    async def connected(self) -> Link:
        """Return the current transport, and wait for one if necessary."""
        return await self._lifeline.connected()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a task that is cancelled when the client closes."""
        return self._lifeline.spawn(work)

    async def ask(self, packet: Request) -> Answered:
        """Send a repeatable request until an answer comes."""
        return await self._lifeline.ask(packet)

    def add_membership(self, membership: Membership) -> None:
        self._memberships.append(membership)

    def drop_membership(self, membership: Membership | None) -> None:
        if membership in self._memberships:
            self._memberships.remove(membership)

    # Identity

    @property
    def info(self) -> ClientInfo:
        """The client's registration at the nodes; `InvalidValue` before it is opened."""
        if self._lifeline.info is None:
            raise InvalidValue("not connected: use `async with tidegate.connect(url) as mq`")
        return self._lifeline.info

    @property
    def client_id(self) -> int:
        return self.info.client_id

    @property
    def client_name(self) -> str:
        return self.info.name

    @property
    def mode(self) -> str:
        return {mode: name for name, mode in MODES.items()}[self.info.mode]

    async def _client_id(self, client: str | int) -> int:
        if isinstance(client, int):
            return client
        known = self._client_ids.get(client)
        if known is None:
            packet = (await self._lifeline.ask(FindClient(client))).packet
            assert isinstance(packet, FindClientResponse)
            known = self._client_ids[client] = packet.client_id
        return known

    async def client_id_of(self, name: str) -> int:
        """Return the id of a client by name.

        A name that no client has yet is reserved. Messages to its id wait for the client that
        registers under this name.
        """
        return await self._client_id(name)

    # Queues

    async def queue_id(self, queue: str | int) -> int:
        if isinstance(queue, int):
            return queue
        known = self._queue_ids.get(queue)
        if known is None:
            known = (await self.queue(queue)).queue_id
        return known

    async def queue(self, queue: str | int) -> QueueInfo:
        """Return a queue by name or id; raise `QueueNotExisting` if there is none."""
        if isinstance(queue, int):
            packet = (await self._lifeline.ask(GetQueueName(queue))).packet
            assert isinstance(packet, GetQueueNameResponse)
            return self.note_queue(packet.queue)
        packet = (await self._lifeline.ask(GetQueueId(queue))).packet
        assert isinstance(packet, GetQueueIdResponse)
        return self.note_queue(packet.queue)

    def note_queue(self, info: QueueInfo) -> QueueInfo:
        """Cache the id of a queue, and whether it is a logical queue."""
        self._queue_ids[info.name] = info.queue_id
        if info.elastic:
            self._elastic_ids.add(info.queue_id)
        else:
            self._elastic_ids.discard(info.queue_id)
        return info

    def is_elastic(self, queue_id: int) -> bool:
        """Return whether a queue that was looked up is a logical queue."""
        return queue_id in self._elastic_ids

    def forget_queue_id(self, queue: str) -> None:
        self._queue_ids.pop(queue, None)
