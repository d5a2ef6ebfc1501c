"""Putting: what applications put one at a time goes out in batches, one outbox for each queue.

The outbox of a plain queue is an Outbox, that of a logical one a Spread: the first look at the
queue says which.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING, Unpack, cast

from tidegate.client import tracing
from tidegate.client.calls import Calls
from tidegate.client.checks import checked_payload
from tidegate.client.options import PLAIN, PutOptions, check_text, checked_options
from tidegate.client.outbox import Outbox
from tidegate.client.spread import Spread
from tidegate.client.topic_outbox import TopicOutbox
from tidegate.core.errors import InvalidValue, TidegateError
from tidegate.core.model import PRIORITY_DEFAULT
from tidegate.wire.connection import MESSAGE_BYTES_MAX
from tidegate.wire.packets.puts import PutToQueues, PutToQueuesResponse

if TYPE_CHECKING:
    from tidegate.client.client import Client
    from tidegate.client.lifeline import Lifeline


class PutCalls(Calls):
    """The part of a client that puts."""

    def __init__(self, lifeline: Lifeline) -> None:
        super().__init__(lifeline)
        self._outboxes: dict[str, Outbox | Spread] = {}
        self._topic_outboxes: dict[str, TopicOutbox] = {}
        # Of producers that have come as such.
        self._producers: list[Outbox | Spread] = []
        # Others took their places; what was under way in them still needs its answers.
        self._replaced: list[Outbox | Spread] = []
        self._soon: set[asyncio.Future[int]] = set()
        self._soon_failures: list[BaseException] = []

    def put(self, queue: str, payload: bytes, **options: Unpack[PutOptions]) -> asyncio.Future[int]:
        """Put a message. Await it: it returns the message's id once the message is on disk.

        The options are those of `PutOptions`. An id of 0 says that the message is stored, and its
        id not known here: it was before the connection broke, or under the same dedup id.
        """
        outbox = self._outboxes.get(queue)
        if outbox is None or self._lifeline.outage is not None:
            outbox = self.outbox(queue)
        if type(payload) is not bytes or len(payload) > MESSAGE_BYTES_MAX:
            payload = checked_payload(payload)
        if not options:
            return outbox.add(payload)
        special = checked_options(options)
        return outbox.add(payload) if special == PLAIN else outbox.add_special(payload, special)

    def put_soon(
        self, queue: str, payload: bytes, **options: Unpack[PutOptions]
    ) -> asyncio.Future[int]:
        """Put without waiting; `flush()` waits for all, and raises what went wrong."""
        future = self.put(queue, payload, **options)
        self._soon.add(future)
        future.add_done_callback(self._soon_done)
        return future

    def _soon_done(self, future: asyncio.Future[int]) -> None:
        self._soon.discard(future)
        if not future.cancelled() and (failure := future.exception()) is not None:
            self._soon_failures.append(failure)

    async def flush(self) -> None:
        """Wait until everything put soon is confirmed."""
        while self._soon:
            await asyncio.wait(set(self._soon))
        if self._soon_failures:
            failures, self._soon_failures = self._soon_failures, []
            raise failures[0]

    async def put_many(
        self, queue: str, payloads: Iterable[bytes], *, priority: int = PRIORITY_DEFAULT
    ) -> list[int]:
        """Put many messages in as few batches as possible; their ids once all are on disk."""
        chosen = [
            payload if type(payload) is bytes else checked_payload(payload) for payload in payloads
        ]
        if not chosen:
            return []
        checked_options({"priority": priority})
        outbox = self.outbox(queue)
        ids: list[int] = []
        with tracing.publishing(queue, count=len(chosen)):
            for answer in await outbox.add_many(chosen, priority):
                ids += answer
        return ids

    async def put_each(self, queue: str, messages: Iterable[tuple[bytes, PutOptions]]) -> list[int]:
        """Put many messages, each with options of its own; their ids once all are on disk."""
        puts = [self.put(queue, payload, **options) for payload, options in messages]
        return await asyncio.gather(*puts)

    async def put_to(
        self,
        queues: Iterable[str | int],
        payload: bytes,
        *,
        partial: bool = False,
        receiver: int | None = None,
        context: int | None = None,
        priority: int = PRIORITY_DEFAULT,
        content_type: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> list[str]:
        """Put one message into several queues: all or none, or with `partial` those that can.

        The names of the queues that took it.
        """
        if isinstance(queues, str):
            raise InvalidValue(f"put_to takes a list of queues: [{queues!r}]")
        names = list(dict.fromkeys(queues))
        if not names:
            raise InvalidValue("name at least one queue")
        options: PutOptions = {
            "receiver": receiver,
            "context": context,
            "priority": priority,
            "content_type": content_type,
            "headers": headers,
        }
        checked_options(options)
        by_id: dict[int, str] = {}
        for name in names:
            try:
                by_id[await self.queue_id(name)] = str(name)
            except TidegateError:
                if not partial:
                    raise
        if not by_id:
            return []
        with tracing.publishing(", ".join(by_id.values()), headers) as options["headers"]:
            packet = PutToQueues(
                list(by_id),
                # A producer of its own: resends are recognised, and nothing else is taken for one.
                secrets.randbits(62) + 1,
                1,
                priority,
                partial,
                receiver,
                context,
                checked_options(options).attributes,
            )
            # The same batch number each time, so repeating it is safe.
            answered = await self._lifeline.ask(packet, [checked_payload(payload)])
        assert isinstance(answered.packet, PutToQueuesResponse)
        return [by_id[queue_id] for queue_id in answered.packet.queue_ids]

    # Outboxes

    def _topic_outbox(self, topic: str) -> TopicOutbox:
        outbox = self._topic_outboxes.get(topic)
        if outbox is None or self._lifeline.outage is not None:
            self._check_name(topic, "topic")
            outbox = self._topic_outboxes[topic] = TopicOutbox(self._whole, topic)
        return outbox

    def outbox(self, queue: str) -> Outbox | Spread:
        """Where what is put to a queue gathers; it says whether it is of any use to put now."""
        outbox = self._outboxes.get(queue)
        if outbox is not None and self._lifeline.outage is None:
            return outbox
        self._check_name(queue, "queue")
        queue_id = self._queue_ids.get(queue)
        if queue_id is not None and self.is_elastic(queue_id):
            spread = self._outboxes[queue] = Spread(self._whole, queue, queue_id)
            return spread
        plain = self._outboxes[queue] = Outbox(self._whole, queue)
        plain.queue_id = queue_id
        return plain

    def spread_over(self, outbox: Outbox, queue_id: int) -> Spread:
        """The queue turned out to be a logical one: what waits is dealt to its replicas."""
        spread = self._outboxes.get(outbox.queue)
        if not isinstance(spread, Spread):
            spread = self._outboxes[outbox.queue] = Spread(self._whole, outbox.queue, queue_id)
        spread.take_over(outbox)
        return spread

    @property
    def _whole(self) -> Client:
        """The client that this is a part of."""
        return cast("Client", self)

    async def look_again(self) -> None:
        """Ask whether plain queues that we put to have become logical ones."""
        for queue, outbox in list(self._outboxes.items()):
            if not isinstance(outbox, Outbox) or outbox.queue_id is None or not outbox.was_used():
                continue
            info = await self.queue(queue)
            if info.elastic and self._outboxes.get(queue) is outbox:
                outbox.spread(info.queue_id)

    def _check_name(self, name: str, kind: str) -> None:
        if self._lifeline.outage is not None:
            raise self._lifeline.outage
        if not isinstance(name, str) or not name:
            raise InvalidValue(f"a {kind} is named by a string that is not empty, not {name!r}")
        check_text(name)
        if self._lifeline.info is None:
            raise InvalidValue("not connected: use `async with tidegate.connect(url) as mq`")

    def forget_outbox(self, outbox: Outbox | Spread, error: TidegateError) -> None:
        """A queue may have been deleted and made anew: look its id up again next time."""
        if isinstance(outbox, Spread):
            if self._outboxes.get(outbox.queue) is outbox:
                del self._outboxes[outbox.queue]
            self._queue_ids.pop(outbox.queue, None)
            self._keep_until_answered(outbox)
        elif not outbox.unconfirmed and self._topic_outboxes.get(outbox.queue) is outbox:
            del self._topic_outboxes[outbox.queue]
        elif not outbox.unconfirmed and self._outboxes.get(outbox.queue) is outbox:
            del self._outboxes[outbox.queue]
            self._queue_ids.pop(outbox.queue, None)

    def _keep_until_answered(self, outbox: Outbox | Spread) -> None:
        self._replaced = [each for each in self._replaced if each.unconfirmed]
        if outbox.unconfirmed and outbox not in self._replaced:
            self._replaced.append(outbox)

    def _all_outboxes(self) -> list[Outbox | Spread]:
        current = [*self._outboxes.values(), *self._topic_outboxes.values(), *self._producers]
        return [*current, *self._replaced]

    def add_producer(self, outbox: Outbox | Spread) -> None:
        self._producers.append(outbox)

    def drop_producer(self, outbox: Outbox | Spread) -> None:
        self._producers.remove(outbox)
