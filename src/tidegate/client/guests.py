"""Queues that go with our connection, made anew when there is another one.

They are deleted when a connection ends, and with them what was in them; a client that comes back
is subscribed again, to what is published from then on.
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
    """The topics to which we are subscribed for the life of a connection."""

    def __init__(self, client: Client, lifeline: Lifeline) -> None:
        self._client = client
        self._lifeline = lifeline
        self._packets: dict[str, SubscribeTopic] = {}

    async def add(self, packet: SubscribeTopic) -> QueueInfo:
        """Subscribe, now and on every connection to come."""
        answered = await self._lifeline.ask(packet, repeatable=False)
        assert isinstance(answered.packet, SubscribeTopicResponse)
        self._packets[packet.queue] = packet
        return answered.packet.queue

    def __contains__(self, queue: str) -> bool:
        return queue in self._packets

    def forget(self, queue: str) -> None:
        self._packets.pop(queue, None)

    def resume(self) -> None:
        """There is a new connection."""
        for packet in self._packets.values():
            self._lifeline.spawn(self._again(packet))

    async def _again(self, packet: SubscribeTopic) -> None:
        generation = self._lifeline.generation
        deadline = asyncio.get_running_loop().time() + self._lifeline.reconnect_s
        while generation == self._lifeline.generation:
            try:
                answered = await self._lifeline.ask(packet, repeatable=False)
            except QueueNameNotUnique as error:
                # The node may not have noticed yet that our former connection is gone.
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
