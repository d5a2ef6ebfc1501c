"""Settling of messages that were read under a lease; the node assigns them to consumer number 0."""

from __future__ import annotations

from tidegate.client.lifeline import Lifeline
from tidegate.client.link import Link
from tidegate.client.message import Comeback
from tidegate.core.errors import LeaseLost
from tidegate.wire.packets.settling import Extend, Return, Settle, SettleResponse


class ReadHolder:
    """Settles messages that were read with a lease."""

    def __init__(self, lifeline: Lifeline, queue: str, queue_id: int) -> None:
        self._lifeline = lifeline
        self.queue = queue
        self._queue_id = queue_id

    def _link(self, generation: int) -> Link:
        link = self._lifeline.link
        if generation != self._lifeline.generation or link is None or not link.alive:
            raise LeaseLost("the connection was lost meanwhile, and the message went back")
        return link

    def lease_of(self, generation: int) -> tuple[Link, int, int]:
        """Return transport, queue id and consumer number; raise `LeaseLost` after a reconnect."""
        return self._link(generation), self._queue_id, 0

    def ack_tag(self, tag: int, generation: int) -> None:
        self._link(generation).post(Settle(self._queue_id, 0, [(tag, tag)]))

    async def ack_tags(self, first: int, last: int, generation: int) -> None:
        await self._settle(Settle(self._queue_id, 0, [(first, last)], confirm=True), generation)

    async def return_tags(self, first: int, last: int, generation: int, how: Comeback) -> None:
        await self._settle(Return(self._queue_id, 0, [(first, last)], *how), generation)

    async def extend_tags(self, first: int, last: int, generation: int, lease_s: float) -> None:
        lease_ms = max(int(lease_s * 1e3), 1)
        await self._settle(Extend(self._queue_id, 0, [(first, last)], lease_ms), generation)

    async def _settle(self, packet: Settle | Return | Extend, generation: int) -> None:
        answered = await self._link(generation).ask(packet)
        assert isinstance(answered.packet, SettleResponse)
        # In a cumulative acknowledgement, `lost` also counts messages that were settled before.
        single = packet.ranges is not None and packet.ranges[0][0] == packet.ranges[0][1]
        if answered.packet.lost and single:
            raise LeaseLost("the message was no longer held: it has gone to somebody else")
