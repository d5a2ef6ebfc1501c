"""Topics in memory, and the queues that are subscribed to them."""

from __future__ import annotations

import asyncio

from tidegate.core.model import DEFAULT_POLICY, QueueInfo
from tidegate.core.ports import Clock
from tidegate.core.topic import Filter, SubscriptionInfo, TopicInfo
from tidegate.storage.memory_queues import MemoryQueues


class _Topic:
    """A topic: its queues, each with its filter and, if temporary, the member it belongs to."""

    def __init__(self, topic_id: int, name: str) -> None:
        self.topic_id = topic_id
        self.name = name
        self.subscriptions: dict[int, tuple[Filter | None, int | None]] = {}


class MemoryTopics(MemoryQueues):
    """The part of an in-memory store that manages topics."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._topics: dict[str, _Topic] = {}
        # Like PostgreSQL's sequences: an id is never used again.
        self._last_topic = 0

    def _forget_queue(self, queue_id: int) -> None:
        super()._forget_queue(queue_id)
        for topic in self._topics.values():
            topic.subscriptions.pop(queue_id, None)

    async def create_topic(self, name: str) -> TopicInfo | None:
        await asyncio.sleep(0)
        if name in self._topics:
            return None
        self._last_topic += 1
        self._topics[name] = _Topic(self._last_topic, name)
        return self._topic_info(self._topics[name])

    def _topic_info(self, topic: _Topic) -> TopicInfo:
        return TopicInfo(
            topic.topic_id,
            topic.name,
            [
                SubscriptionInfo(
                    queue_id, self._replicas[queue_id].info.name, header_filter, member_id is None
                )
                for queue_id, (header_filter, member_id) in sorted(topic.subscriptions.items())
            ],
        )

    async def delete_topic(self, name: str) -> bool:
        await asyncio.sleep(0)
        return self._topics.pop(name, None) is not None

    async def find_topic(self, name: str) -> TopicInfo | None:
        await asyncio.sleep(0)
        topic = self._topics.get(name)
        return None if topic is None else self._topic_info(topic)

    async def list_topics(self) -> list[TopicInfo]:
        await asyncio.sleep(0)
        return [self._topic_info(self._topics[name]) for name in sorted(self._topics)]

    async def add_subscription(
        self, topic: str, queue: str, header_filter: Filter | None, member_id: int | None
    ) -> QueueInfo | None:
        await asyncio.sleep(0)
        found = self._topics.get(topic)
        if found is None:
            return None
        info = self._create_queue(queue, True, DEFAULT_POLICY)
        if info is None:
            if member_id is not None:
                return None
            info = self._replicas[self._queue_ids[queue]].info
        _, lives_with = found.subscriptions.get(info.queue_id, (None, member_id))
        found.subscriptions[info.queue_id] = (header_filter or None, lives_with)
        return info

    async def drop_subscription(self, topic: str, queue_id: int) -> bool:
        await asyncio.sleep(0)
        found = self._topics.get(topic)
        return found is not None and found.subscriptions.pop(queue_id, None) is not None

    async def lost_subscriptions(self) -> list[int]:
        await asyncio.sleep(0)
        return [
            queue_id
            for topic in self._topics.values()
            for queue_id, (_, member_id) in topic.subscriptions.items()
            if member_id is not None and member_id not in self._members
        ]
