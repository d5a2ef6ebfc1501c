"""Temporary queues: subscriptions to topics that live as long as a transport.

The node deletes these queues with their messages when the transport ends. After a reconnect the
client creates them again. They then receive only messages that are published from that time on.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tidegate.core.errors import QueueNameNotUnique, TidegateError
from tidegate.wire.packets.topics import SubscribeTopic, SubscribeTopicResponse

if TYPE_CHECKING:
    from tidegate.client.client import Client
    from tidegate.client.lifeline import Lifeline
    from tidegate.core.model import QueueInfo

_BACKOFF_S = 0.1


class Guests:
    """The temporary queues of one client."""

    def __init__(self, client: Client, lifeline: Lifeline) -> None:
        self._client = client
        self._lifeline = lifeline
        self._packets: dict[str, SubscribeTopic] = {}

    async def add(self, packet: SubscribeTopic) -> QueueInfo:
        """Create a temporary queue, now and after every reconnect."""
        answered = await self._lifeline.ask(packet, repeatable=False)
        assert isinstance(answered.packet, SubscribeTopicResponse)
        self._packets[packet.queue] = packet
        return answered.packet.queue

    def __contains__(self, queue: str) -> bool:
        return queue in self._packets

    def forget(self, queue: str) -> None:
        self._packets.pop(queue, None)

    def resume(self) -> None:
        """Create all temporary queues again after a reconnect."""
        for packet in self._packets.values():
            self._lifeline.spawn(self._again(packet))

    async def _again(self, packet: SubscribeTopic) -> None:
        generation = self._lifeline.generation
        deadline = asyncio.get_running_loop().time() + self._lifeline.reconnect_s
        while generation == self._lifeline.generation:
            try:
                answered = await self._lifeline.ask(packet, repeatable=False)
            except QueueNameNotUnique as error:
                # The node may not yet have noticed the end of the former transport, and still have
                # the queue.
                if asyncio.get_running_loop().time() > deadline:
                    self._client.on_guest_lost(packet.queue, error)
                    return
                await asyncio.sleep(_BACKOFF_S)
            except TidegateError as error:
                if generation == self._lifeline.generation:
                    self._client.on_guest_lost(packet.queue, error)
                return
            else:
                assert isinstance(answered.packet, SubscribeTopicResponse)
                self._client.on_guest_back(answered.packet.queue)
                return
