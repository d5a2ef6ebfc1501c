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
from typing import TYPE_CHECKING

from tidegate.client.batch import Batch, fill_columns
from tidegate.client.options import PLAIN, Special
from tidegate.client.unsent import Unsent
from tidegate.core.errors import (
    IoFailure,
    LimitReached,
    NotHome,
    QueueNotExisting,
    RetryLater,
    TidegateError,
)
from tidegate.core.model import PRIORITY_DEFAULT
from tidegate.wire.packet import Packet
from tidegate.wire.packets.puts import PutMessageResponse, PutMessages

if TYPE_CHECKING:
    from tidegate.client.client import Client

BATCH_COUNT_MAX = 500
BATCH_BYTES_MAX = 256 * 1024
# Whoever puts many at once waits for all of them: larger batches are better.
MANY_COUNT_MAX = 2000
MANY_BYTES_MAX = 512 * 1024
IN_FLIGHT_MAX = 8


class Outbox:
    """What is on its way to one queue."""

    __slots__ = (
        "_batch",
        "_batch_seen",
        "_client",
        "_futures",
        "_in_flight",
        "_logical_id",
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
        self._batch = 0
        self._batch_seen = 0
        self._in_flight: dict[int, Batch] = {}
        self._resend: deque[Batch] = deque()
        self._scheduled = False
        self._resolving = False
        # Set: the queue is a logical one, and others are to deal what gathers here.
        self._logical_id: int | None = None

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

    def take(self, unsent: Unsent) -> None:
        """Messages that were gathered elsewhere; they go at once, if there is room."""
        if unsent.special is not None or self._special is not None:
            if self._special is None:
                self._special = deque([PLAIN] * len(self._payloads))
            self._special.extend(unsent.special or [PLAIN] * len(unsent.payloads))
        self._payloads.extend(unsent.payloads)
        self._futures.extend(unsent.futures)
        self.flush()

    def give_unsent(self) -> Unsent:
        """What is in no batch yet, which thereby is no longer here."""
        special = None if self._special is None else list(self._special)
        unsent = Unsent(list(self._payloads), list(self._futures), special)
        self._payloads.clear()
        self._futures.clear()
        self._special = None
        return unsent

    def give_refused(self, *, of_one_each: bool = False) -> list[Batch]:
        """Batches that are stored nowhere for certain, which thereby are no longer here.

        With `of_one_each` only those of which somebody waits for each message.
        """
        kept: deque[Batch] = deque()
        refused: list[Batch] = []
        for batch in self._resend:
            is_whole = isinstance(batch.futures, asyncio.Future)
            (kept if batch.is_unknown or (of_one_each and is_whole) else refused).append(batch)
        self._resend = kept
        return refused

    def adopt(self, batch: Batch) -> None:
        """A batch that was refused elsewhere, under a number of ours."""
        self._batch += 1
        batch.packet.producer, batch.packet.batch = self._producer, self._batch
        if self.queue_id is not None:
            batch.packet.queue_id = self.queue_id
        self._resend.append(batch)
        self.flush()

    async def add_many(self, payloads: list[bytes], priority: int) -> list[list[int]]:
        """Many at once, in batches of their own: a future each for the batches only."""
        while self.queue_id is None:
            self._found(await self._client.queue_id(self.queue))
            heir = self._client.outbox(self.queue)
            if self._logical_id is not None and heir is not self:
                return await heir.add_many(payloads, priority)
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
            + sum(batch.count for batch in self._in_flight.values())
            + sum(batch.count for batch in self._resend)
        )

    def was_used(self) -> bool:
        """Whether anything was sent since somebody asked this."""
        used, self._batch_seen = self._batch != self._batch_seen, self._batch
        return used

    # Sending

    def _flush(self) -> None:
        self._scheduled = False
        link = self._client.link
        if link is None or not link.alive:
            return  # the client flushes when it is connected again
        if self.queue_id is None:
            if not self._in_flight:
                self._resolve()
            return
        if self._logical_id is not None:
            self._leave_it_to_others()
            return
        while self._resend and len(self._in_flight) < self.in_flight_max:
            self._send(self._resend.popleft())
        while self._payloads and len(self._in_flight) < self.in_flight_max and not self._resend:
            self._send(self._next_batch())

    def flush(self) -> None:
        if not self._scheduled:
            self._flush()

    def spread(self, queue_id: int) -> None:
        """The queue turned out to be a logical one."""
        self.queue_id = self._logical_id = queue_id
        self.flush()

    def _found(self, queue_id: int) -> None:
        if self._client.is_elastic(queue_id):
            self.spread(queue_id)
        else:
            self.queue_id, self._logical_id = queue_id, None

    def _leave_it_to_others(self) -> None:
        """Once what was sent has its answers: else what is put now might be stored before it."""
        self._send_unknown()
        if not self._in_flight:
            assert self._logical_id is not None
            self._client.spread_over(self, self._logical_id)

    def _send_unknown(self) -> None:
        """Only what may be stored where it was sent; the rest waits for its answers."""
        unknown = [batch for batch in self._resend if batch.is_unknown]
        for batch in unknown[: self.in_flight_max - len(self._in_flight)]:
            self._resend.remove(batch)
            self._send(batch)

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
        batch.stored(answer.first_id, answer.ids)

    def _failed(self, batch: Batch, error: TidegateError) -> None:
        if isinstance(error, IoFailure):
            batch.is_unknown = True
        if isinstance(error, NotHome):
            # It has become a logical queue. And whatever was feared: the batch is not stored there.
            batch.is_unknown = False
            self.queue_id = self._logical_id = None
            self._client.forget_queue_id(self.queue)
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
            if batch.is_unknown and patience_s > self._client.reconnect_s:
                error = IoFailure(f"{error}; whether the message is stored is not known")
            batch.give_up(error)
            self._client.forget_outbox(self, error)
            return
        self._try_later(batch)

    def _try_later(self, batch: Batch) -> None:
        """Send it again, after a while that grows."""
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

    def fail(self, error: TidegateError) -> None:
        """Nothing of this will arrive."""
        for batch in (*self._in_flight.values(), *self._resend):
            batch.give_up(error)
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
                self._found(await self._client.queue_id(self.queue))
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
