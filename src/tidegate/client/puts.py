"""The put methods of the client.

Each queue has one producer, which sends the messages in batches. A plain queue has a `Producer`, a
logical queue has a `ReplicaRouter`. The first look-up of the queue decides which one is needed.
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
    """The part of a client that puts messages."""

    def __init__(self, lifeline: Lifeline) -> None:
        super().__init__(lifeline)
        self._outboxes: dict[str, Outbox | Spread] = {}
        self._topic_outboxes: dict[str, TopicOutbox] = {}
        # Producers that were opened with `client.producer(...)`.
        self._producers: list[Outbox | Spread] = []
        # Replaced producers that still wait for confirmations.
        self._replaced: list[Outbox | Spread] = []
        self._soon: set[asyncio.Future[int]] = set()
        self._soon_failures: list[BaseException] = []

    def put(self, queue: str, payload: bytes, **options: Unpack[PutOptions]) -> asyncio.Future[int]:
        """Put a message, and return a future of its id.

        Await the future: it is done once the message is on disk. If the future is not awaited, the
        message is sent all the same.

        Args:
            queue: the name of the queue.
            payload: the message body, as bytes.
            options: see `PutOptions`.

        Returns:
            A future of the message id. Id 0 means that the message is stored but its id is not
            known here: it was stored before the connection broke, or by an earlier put with the
            same dedup id.

        Raises:
            InvalidValue, TypeError, TooLarge: a bad argument; raised at the call.
            Unavailable: the client is closed or has been without a node for too long; raised at the
                call.

        The future fails with `QueueNotExisting`, `Forbidden`, `LimitReached` or another
        `TidegateError` if the message was not stored. `IoFailure` means that it is not known
        whether it was stored.
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
        """Put a message without awaiting it; `flush()` waits for it and raises its error."""
        future = self.put(queue, payload, **options)
        self._soon.add(future)
        future.add_done_callback(self._soon_done)
        return future

    def _soon_done(self, future: asyncio.Future[int]) -> None:
        self._soon.discard(future)
        if not future.cancelled() and (failure := future.exception()) is not None:
            self._soon_failures.append(failure)

    async def flush(self) -> None:
        """Wait until every message of `put_soon` is confirmed, and raise the first error."""
        while self._soon:
            await asyncio.wait(set(self._soon))
        if self._soon_failures:
            failures, self._soon_failures = self._soon_failures, []
            raise failures[0]

    async def put_many(
        self, queue: str, payloads: Iterable[bytes], *, priority: int = PRIORITY_DEFAULT
    ) -> list[int]:
        """Put many messages in as few batches as possible; return their ids once all are on disk.

        Faster than single puts. All messages have the same priority and no other options. If one
        batch fails, the call raises, and the messages of other batches may be stored. A bad
        argument raises before anything is sent.
        """
        chosen = [
            payload
            if type(payload) is bytes and len(payload) <= MESSAGE_BYTES_MAX
            else checked_payload(payload)
            for payload in payloads
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
        """Put many messages, each with its own options; return their ids once all are on disk."""
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
        """Put one message into several queues, in one transaction; return the names of the queues.

        Args:
            queues: names or ids; duplicates count once.
            partial: `False` stores the message in all queues or in none. `True` stores it in the
                queues that accept it.

        The other arguments are the options of `put` with the same names.

        Raises:
            InvalidValue: no queue is given.
            TidegateError: without `partial`, any queue cannot be looked up or refuses the message.
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
                # A producer id of its own, so that the node recognises a resend and nothing else.
                secrets.randbits(62) + 1,
                1,
                priority,
                partial,
                receiver,
                context,
                checked_options(options).attributes,
            )
            # The batch number stays the same, so the request may be repeated.
            answered = await self._lifeline.ask(packet, [checked_payload(payload)])
        assert isinstance(answered.packet, PutToQueuesResponse)
        return [by_id[queue_id] for queue_id in answered.packet.queue_ids]

    # Producers

    def _topic_outbox(self, topic: str) -> TopicOutbox:
        outbox = self._topic_outboxes.get(topic)
        if outbox is None or self._lifeline.outage is not None:
            self._check_name(topic, "topic")
            outbox = self._topic_outboxes[topic] = TopicOutbox(self._whole, topic)
        return outbox

    def outbox(self, queue: str) -> Outbox | Spread:
        """Return the producer of a queue; raise the reason if putting is useless now."""
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
        """Replace the producer of a queue that has become a logical queue, and return the new one.

        The messages that the old producer has not sent go to the new one.
        """
        spread = self._outboxes.get(outbox.queue)
        if not isinstance(spread, Spread):
            spread = self._outboxes[outbox.queue] = Spread(self._whole, outbox.queue, queue_id)
        spread.take_over(outbox)
        return spread

    @property
    def _whole(self) -> Client:
        """The client of which this object is a part."""
        return cast("Client", self)

    async def look_again(self) -> None:
        """Check whether plain queues that this client puts to have become logical queues."""
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
        """Drop the producer of a queue, so that the next put looks the queue's id up again.

        The queue may have been deleted and created again under the same name.
        """
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
