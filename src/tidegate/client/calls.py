"""What every part of the client stands on: the connection, and the ids behind names."""

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
    """Calls over a connection that heals itself."""

    def __init__(self, lifeline: Lifeline) -> None:
        self._lifeline = lifeline
        self._queue_ids: dict[str, int] = {}
        # Of those, the ones whose messages are in replicas.
        self._elastic_ids: set[int] = set()
        self._client_ids: dict[str, int] = {}
        # Where we have come to as a producer or consumer of a logical queue.
        self._memberships: list[Membership] = []

    @property
    def link(self) -> Link | None:
        """The present connection, if there is one."""
        return self._lifeline.link

    @property
    def reconnect_s(self) -> float:
        """How long calls wait for a connection."""
        return self._lifeline.reconnect_s

    @property
    def outage(self) -> TidegateError | None:
        """Why calls fail at once: closed, too long without a node, or no longer let in."""
        return self._lifeline.outage

    @property
    def generation(self) -> int:
        """Which connection this is; it counts up with each that comes."""
        return self._lifeline.generation

    async def connected(self) -> Link:
        """The connection, when there is one."""
        return await self._lifeline.connected()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something for as long as the client lives."""
        return self._lifeline.spawn(work)

    async def ask(self, packet: Request) -> Answered:
        """Ask what may be asked twice, until there is an answer."""
        return await self._lifeline.ask(packet)

    def add_membership(self, membership: Membership) -> None:
        self._memberships.append(membership)

    def drop_membership(self, membership: Membership | None) -> None:
        if membership in self._memberships:
            self._memberships.remove(membership)

    # Who we are

    @property
    def info(self) -> ClientInfo:
        """Who we are to the nodes."""
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
        """The id that goes with a name; a name nobody has yet is reserved for who comes."""
        return await self._client_id(name)

    # Which queues there are

    async def queue_id(self, queue: str | int) -> int:
        if isinstance(queue, int):
            return queue
        known = self._queue_ids.get(queue)
        if known is None:
            known = (await self.queue(queue)).queue_id
        return known

    async def queue(self, queue: str | int) -> QueueInfo:
        """Find a queue by name or id."""
        if isinstance(queue, int):
            packet = (await self._lifeline.ask(GetQueueName(queue))).packet
            assert isinstance(packet, GetQueueNameResponse)
            return self.note_queue(packet.queue)
        packet = (await self._lifeline.ask(GetQueueId(queue))).packet
        assert isinstance(packet, GetQueueIdResponse)
        return self.note_queue(packet.queue)

    def note_queue(self, info: QueueInfo) -> QueueInfo:
        """What a name stands for now."""
        self._queue_ids[info.name] = info.queue_id
        if info.elastic:
            self._elastic_ids.add(info.queue_id)
        else:
            self._elastic_ids.discard(info.queue_id)
        return info

    def is_elastic(self, queue_id: int) -> bool:
        """Whether a queue that was looked up is spread over replicas."""
        return queue_id in self._elastic_ids

    def forget_queue_id(self, queue: str) -> None:
        self._queue_ids.pop(queue, None)
