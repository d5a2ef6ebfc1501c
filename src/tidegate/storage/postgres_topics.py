"""Topics and subscriptions in PostgreSQL: one method for each SQL function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from tidegate.core.model import QueueInfo
from tidegate.core.topic import Filter, TopicInfo
from tidegate.storage.postgres_queues import json_of, queue_of


class PostgresTopics(ABC):
    """The part of a PostgreSQL store that manages topics."""

    @abstractmethod
    async def _call(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Call a function on the catalogue connection."""

    async def create_topic(self, name: str) -> TopicInfo | None:
        return _topic(await self._call("select * from create_topic(%s)", name))

    async def delete_topic(self, name: str) -> bool:
        return bool((await self._call("select delete_topic(%s)", name))[0][0])

    async def find_topic(self, name: str) -> TopicInfo | None:
        return _topic(await self._call("select * from find_topic(%s)", name))

    async def list_topics(self) -> list[TopicInfo]:
        rows = await self._call("select * from list_topics()")
        return [msgspec.convert(row, TopicInfo) for row in rows]

    async def add_subscription(
        self, topic: str, queue: str, header_filter: Filter | None, member_id: int | None
    ) -> QueueInfo | None:
        rows = await self._call(
            "select * from add_subscription(%s, %s, %s::jsonb, %s::int)",
            topic,
            queue,
            json_of(header_filter) if header_filter else None,
            member_id,
        )
        return queue_of(rows[0]) if rows else None

    async def drop_subscription(self, topic: str, queue_id: int) -> bool:
        rows = await self._call("select drop_subscription(%s, %s::int)", topic, queue_id)
        return bool(rows[0][0])

    async def lost_subscriptions(self) -> list[int]:
        return [row[0] for row in await self._call("select lost_subscriptions()")]


def _topic(rows: list[tuple[Any, ...]]) -> TopicInfo | None:
    return msgspec.convert(rows[0], TopicInfo) if rows else None
