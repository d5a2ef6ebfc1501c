"""Publications to one topic, gathered into batches as puts to a queue are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tidegate.client.batch import Batch
from tidegate.client.outbox import Outbox
from tidegate.wire.packet import Packet
from tidegate.wire.packets.topics import Publish, PublishResponse

if TYPE_CHECKING:
    from tidegate.client.client import Client


class TopicOutbox(Outbox):
    """Collects and sends publications to a topic.

    The result of a future is the number of matching subscriptions.
    """

    __slots__ = ()

    # A node stores batches of a topic concurrently, so only one batch in flight keeps their order.
    in_flight_max = 1

    def __init__(self, client: Client, topic: str) -> None:
        super().__init__(client, topic)
        # Publications name their topic, so there is no id to look up.
        self.queue_id = 0

    def _request(self, batch: Batch) -> Packet:
        return Publish(self.queue, batch.packet)

    def _take_answer(self, batch: Batch, answer: Packet) -> None:
        assert isinstance(answer, PublishResponse)
        futures = batch.futures
        if isinstance(futures, asyncio.Future):
            if not futures.done():
                futures.set_result(answer.counts)
            return
        for future, count in zip(futures, answer.counts, strict=True):
            if not future.done():
                future.set_result(count)
