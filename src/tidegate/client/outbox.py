"""Puts to one queue, gathered into batches behind the application's back.

The first put of a turn of the event loop schedules a flush at its end, so whatever else puts
in the same turn shares its batch. A few batches are in flight at a time; while they are, more
gathers. A batch keeps its number until its fate is known: resent after a broken connection
under the same number, it is stored once.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import deque
from typing import TYPE_CHECKING, Any

from tidegate.client.options import PLAIN, Special
from tidegate.core.errors import LimitReached, QueueNotExisting, RetryLater, TidegateError
from tidegate.core.model import PRIORITY_DEFAULT
from tidegate.wire.packets import Packet, PutMessageResponse, PutMessages

if TYPE_CHECKING:
    from tidegate.client.client import Client

BATCH_COUNT_MAX = 500
BATCH_BYTES_MAX = 256 * 1024
# Whoever puts many at once waits for all of them: larger batches are better.
MANY_COUNT_MAX = 2000
MANY_BYTES_MAX = 512 * 1024
IN_FLIGHT_MAX = 8


class Batch:
    """Messages that travel together."""

    __slots__ = ("bodies", "failing_since", "futures", "looked_up", "packet", "tries")

    def __init__(
        self,
        packet: PutMessages,
        bodies: list[bytes | memoryview],
        futures: list[asyncio.Future[int]] | asyncio.Future[list[int]],
    ) -> None:
        self.packet = packet
        self.bodies = bodies
        self.futures = futures
        self.tries = 0
        self.failing_since: float | None = None
        self.looked_up = False


class Outbox:
    """What is on its way to one queue."""

    __slots__ = (
        "_batch",
        "_bytes",
        "_client",
        "_futures",
        "_in_flight",
        "_loop",
        "_payloads",
        "_producer",
        "_resend",
        "_resolving",
        "_scheduled",
        "_special",
        "queue",
        "queue_id",
    )

    in_flight_max = IN_FLIGHT_MAX

    def __init__(self, client: Client, queue: str) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self.queue = queue
        self.queue_id: int | None = None
        # Unique, so that resends are recognised; of this outbox, since batches count from 1.
        self._producer = secrets.randbits(62) + 1
        self._payloads: deque[bytes] = deque()
        self._futures: deque[asyncio.Future[int]] = deque()
        # Position in the deque from its left + offset → what is not plain about it.
        self._special: deque[Special] | None = None
        self._bytes = 0
        self._batch = 0
        self._in_flight: dict[int, Batch] = {}
        self._resend: deque[Batch] = deque()
        self._scheduled = False
        self._resolving = False

    def add(self, payload: bytes) -> asyncio.Future[int]:
        """A plain message."""
        future: asyncio.Future[int] = self._loop.create_future()
        self._payloads.append(payload)
        self._futures.append(future)
        if self._special is not None:
            self._special.append(PLAIN)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)
        return future

    def add_special(self, payload: bytes, special: Special) -> asyncio.Future[int]:
        """A message with a receiver, context, priority or attributes."""
        if self._special is None:
            self._special = deque([PLAIN] * len(self._payloads))
        future = self.add(payload)
        self._special[-1] = special
        return future

    async def add_many(self, payloads: list[bytes], priority: int) -> list[list[int]]:
        """Many at once, in batches of their own: a future each for the batches only."""
        while self.queue_id is None:
            self.queue_id = await self._client.queue_id(self.queue)
        # What was put before goes first.
        while self._payloads:
            self._resend.append(self._next_batch())
        waiting: list[asyncio.Future[list[int]]] = []
        for at in range(0, len(payloads), MANY_COUNT_MAX):
            for chosen in _by_bytes(payloads[at : at + MANY_COUNT_MAX]):
                future: asyncio.Future[list[int]] = self._loop.create_future()
                waiting.append(future)
                self._batch += 1
                packet = PutMessages(
                    self.queue_id,
                    self._producer,
                    self._batch,
                    list(map(len, chosen)),
                    [priority],
                )
                self._resend.append(Batch(packet, [b"".join(chosen)], future))
        self.flush()
        return await asyncio.gather(*waiting)

    @property
    def unconfirmed(self) -> int:
        return (
            len(self._payloads)
            + sum(len(batch.packet.lengths) for batch in self._in_flight.values())
            + sum(len(batch.packet.lengths) for batch in self._resend)
        )

    # Sending

    def _flush(self) -> None:
        self._scheduled = False
        link = self._client.link
        if link is None or not link.alive:
            return  # the client flushes when it is connected again
        if self.queue_id is None:
            self._resolve()
            return
        while self._resend and len(self._in_flight) < self.in_flight_max:
            self._send(self._resend.popleft())
        while self._payloads and len(self._in_flight) < self.in_flight_max and not self._resend:
            self._send(self._next_batch())

    def flush(self) -> None:
        if not self._scheduled:
            self._flush()

    def _next_batch(self) -> Batch:
        payloads, futures = self._payloads, self._futures
        count = min(len(payloads), BATCH_COUNT_MAX)
        if count == len(payloads):
            chosen, waiting = list(payloads), list(futures)
            payloads.clear()
            futures.clear()
        else:
            chosen = [payloads.popleft() for _ in range(count)]
            waiting = [futures.popleft() for _ in range(count)]
        lengths = list(map(len, chosen))
        if sum(lengths) > BATCH_BYTES_MAX and count > 1:
            # Large messages: keep what fits, give the rest back to the front.
            total = keep = 0
            for length in lengths:
                if keep and total + length > BATCH_BYTES_MAX:
                    break
                total += length
                keep += 1
            payloads.extendleft(reversed(chosen[keep:]))
            futures.extendleft(reversed(waiting[keep:]))
            chosen, waiting, lengths = chosen[:keep], waiting[:keep], lengths[:keep]
            count = keep
        assert self.queue_id is not None
        self._batch += 1
        packet = PutMessages(
            self.queue_id, self._producer, self._batch, lengths, [PRIORITY_DEFAULT]
        )
        if self._special is not None:
            special = [self._special.popleft() for _ in range(count)]
            if not self._special:
                self._special = None
            fill_columns(packet, special)
        return Batch(packet, [b"".join(chosen)], waiting)

    def _send(self, batch: Batch) -> None:
        link = self._client.link
        assert link is not None
        number = batch.packet.batch
        # A queue that changes its owner may refuse the one before and take this one.
        batch.packet.after = max((n for n in self._in_flight if n < number), default=None)
        self._in_flight[number] = batch

        def done(answer: Packet | TidegateError, body: memoryview) -> None:
            del self._in_flight[number]
            if isinstance(answer, TidegateError):
                self._failed(batch, answer)
            else:
                self._take_answer(batch, answer)
            if (self._payloads or self._resend) and not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._flush)

        batch.packet.queue_id = self.queue_id or batch.packet.queue_id
        link.submit(self._request(batch), batch.bodies, done)

    def _request(self, batch: Batch) -> Packet:
        """The batch as it travels."""
        return batch.packet

    def _take_answer(self, batch: Batch, answer: Packet) -> None:
        """It is stored."""
        assert isinstance(answer, PutMessageResponse)
        message_id = answer.first_id
        step = 1 if message_id else 0
        futures = batch.futures
        if isinstance(futures, asyncio.Future):
            if not futures.done():
                count = len(batch.packet.lengths)
                futures.set_result(
                    list(range(message_id, message_id + count)) if step else [0] * count
                )
            return
        if answer.ids is not None:
            for future, each_id in zip(futures, answer.ids, strict=False):
                if not future.done():
                    future.set_result(each_id)
            return
        for future in futures:
            if not future.done():
                future.set_result(message_id)
            message_id += step

    def _failed(self, batch: Batch, error: TidegateError) -> None:
        if isinstance(error, QueueNotExisting) and not batch.looked_up:
            # Deleted and made anew under the same name, perhaps: look it up once.
            batch.looked_up = True
            if batch.packet.queue_id == self.queue_id:
                self.queue_id = None
                self._client.forget_queue_id(self.queue)
            self._put_back(batch)
            return
        if batch.failing_since is None:
            batch.failing_since = self._loop.time()
        # A node that answers, and cannot: nobody waits for that longer than for a connection.
        patience_s = self._loop.time() - batch.failing_since
        if (
            not isinstance(error, RetryLater)
            or isinstance(error, LimitReached)
            or patience_s > self._client.reconnect_s
        ):
            self._give_up(batch, error)
            self._client.forget_outbox(self, error)
            return
        self._put_back(batch)
        batch.tries += 1
        if self._client.link is not None and self._client.link.alive:
            delay_s = min(0.02 * 2 ** min(batch.tries, 6), 1.0) * random.uniform(0.5, 1.0)
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_later(delay_s, self._flush)

    def _put_back(self, batch: Batch) -> None:
        """In order: older batches go first again."""
        at = 0
        while at < len(self._resend) and self._resend[at].packet.batch < batch.packet.batch:
            at += 1
        self._resend.insert(at, batch)

    @staticmethod
    def _give_up(batch: Batch, error: TidegateError) -> None:
        futures = batch.futures
        for future in [futures] if isinstance(futures, asyncio.Future) else futures:
            if not future.done():
                future.set_exception(error)

    def fail(self, error: TidegateError) -> None:
        """Nothing of this will arrive."""
        for batch in (*self._in_flight.values(), *self._resend):
            self._give_up(batch, error)
        self._resend.clear()
        for future in self._futures:
            if not future.done():
                future.set_exception(error)
        self._payloads.clear()
        self._futures.clear()
        self._special = None

    def _resolve(self) -> None:
        """Find out the queue's id, once; then flush."""
        if self._resolving:
            return
        self._resolving = True

        async def resolve() -> None:
            try:
                self.queue_id = await self._client.queue_id(self.queue)
            except TidegateError as error:
                # Asked for as long as calls wait for an answer: nobody would flush again.
                self.fail(error)
                self._client.forget_outbox(self, error)
            finally:
                self._resolving = False
            if self.queue_id is not None:
                self._flush()

        self._client.spawn(resolve())


def _by_bytes(payloads: list[bytes]) -> list[list[bytes]]:
    """Cut where a batch would grow too heavy."""
    if sum(map(len, payloads)) <= MANY_BYTES_MAX:
        return [payloads]
    pieces: list[list[bytes]] = [[]]
    total = 0
    for payload in payloads:
        if pieces[-1] and total + len(payload) > MANY_BYTES_MAX:
            pieces.append([])
            total = 0
        pieces[-1].append(payload)
        total += len(payload)
    return pieces


def fill_columns(packet: PutMessages, special: list[Special]) -> None:
    """Only columns in which somebody says something travel."""
    receivers, contexts, priorities, attributes, delays_s, ttls_s = map(
        list, zip(*special, strict=True)
    )
    first = priorities[0]
    packet.priorities = [first] if all(p == first for p in priorities) else priorities
    packet.receivers = _unless_empty(receivers)
    packet.contexts = _unless_empty(contexts)
    packet.attributes = _unless_empty(attributes)
    packet.delays_s = _unless_empty(delays_s)
    packet.ttls_s = _unless_empty(ttls_s)


def _unless_empty(column: list[Any]) -> list[Any] | None:
    return None if all(entry is None for entry in column) else column
