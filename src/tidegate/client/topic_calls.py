"""Topics: what is published once, and goes to every queue that has subscribed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Unpack

from tidegate.client.checks import checked_payload
from tidegate.client.guests import Guests
from tidegate.client.options import PLAIN, PutOptions, checked_options
from tidegate.client.puts import PutCalls
from tidegate.core.errors import TopicNameNotUnique
from tidegate.core.model import QueueInfo
from tidegate.core.topic import Filter, TopicInfo, check_filter
from tidegate.wire.packets.topics import (
    CreateTopic,
    CreateTopicResponse,
    DeleteTopic,
    GetTopics,
    GetTopicsResponse,
    SubscribeTopic,
    SubscribeTopicResponse,
    UnsubscribeTopic,
)


class TopicCalls(PutCalls):
    """The part of a client that knows topics."""

    _guests: Guests

    async def create_topic(self, name: str, *, exist_ok: bool = False) -> TopicInfo:
        """Create a topic: what is published to it goes to every subscription that matches."""
        try:
            answered = await self._lifeline.ask(CreateTopic(name), repeatable=exist_ok)
        except TopicNameNotUnique:
            if not exist_ok:
                raise
            return next(topic for topic in await self.topics() if topic.name == name)
        assert isinstance(answered.packet, CreateTopicResponse)
        return answered.packet.topic

    async def delete_topic(self, name: str) -> None:
        """Delete a topic; the queues of its subscriptions stay."""
        await self._lifeline.ask(DeleteTopic(name), repeatable=False)

    async def topics(self) -> list[TopicInfo]:
        """All topics, with their subscriptions."""
        packet = (await self._lifeline.ask(GetTopics())).packet
        assert isinstance(packet, GetTopicsResponse)
        return packet.topics

    async def subscribe_to(
        self,
        topic: str,
        queue: str,
        *,
        filter: Filter | None = None,  # noqa: A002
        durable: bool = True,
    ) -> QueueInfo:
        """Let a queue have what is published to a topic from now on; it is made if need be.

        `filter` names headers that must match, as in `{"region": "eu", "kind": ["a", "b"]}`. With
        `durable=False` the queue must be new, and is deleted when this connection ends.
        """
        check_filter(filter)
        packet = SubscribeTopic(topic, queue, filter, durable)
        if durable:
            answered = await self._lifeline.ask(packet)
            assert isinstance(answered.packet, SubscribeTopicResponse)
            info = answered.packet.queue
        else:
            info = await self._guests.add(packet)
        return self.note_queue(info)

    async def unsubscribe_from(self, topic: str, queue: str) -> None:
        """End a subscription; the queue stays, with what is in it."""
        self._guests.forget(queue)
        await self._lifeline.ask(UnsubscribeTopic(topic, queue), repeatable=False)

    def publish(
        self, topic: str, payload: bytes, **options: Unpack[PutOptions]
    ) -> asyncio.Future[int]:
        """Put once, for every subscription that matches. Await it: it is on disk in all of them.

        The options are those of `put`; it returns how many subscriptions got it.
        """
        outbox = self._topic_outbox(topic)
        payload = checked_payload(payload)
        special = checked_options(options)
        return outbox.add(payload) if special == PLAIN else outbox.add_special(payload, special)

    async def publish_many(
        self, topic: str, payloads: Iterable[bytes], **options: Unpack[PutOptions]
    ) -> list[int]:
        """Publish many with the same options; how many subscriptions got each."""
        return await asyncio.gather(
            *(self.publish(topic, payload, **options) for payload in payloads)
        )
