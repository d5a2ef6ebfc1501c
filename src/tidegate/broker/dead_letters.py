"""Dead letters: given-up messages move to another queue, and back on request.

Within one store a move is one transaction, which stores the message in the target and settles it in
the source. The message is always in exactly one of them. To a queue in another store the message is
first copied under a producer and batch number of its own, then settled in the source. A repeated
copy is recognized and not stored twice.

The target queue is brought to this node first. If the store or that queue is not available, the
move is repeated. It ends when it has succeeded or when the source has another owner. That owner
finds the message where it was.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from tidegate.broker.access import Authorizer
from tidegate.broker.batch import SEGMENT_BYTES_MAX, SEGMENT_COUNT_MAX
from tidegate.broker.recording import DEAD, MOVED
from tidegate.broker.transactions import commit_once
from tidegate.core.errors import (
    InvalidValue,
    IoFailure,
    NotOwner,
    QueueNotExisting,
    RetryLater,
    StaleEpoch,
    Unavailable,
)
from tidegate.core.model import (
    DEAD_LETTER_POLICY,
    DEAD_SUFFIX,
    Attributes,
    Death,
    DeathReason,
    Right,
)
from tidegate.core.runtime import crash_point
from tidegate.core.segment import Segment
from tidegate.core.store import Write
from tidegate.core.topology import share_store
from tidegate.protocol.messages import Redrive
from tidegate.queueing.spans import Span

if TYPE_CHECKING:
    from tidegate.broker.context import NodeContext
    from tidegate.broker.ownership import Ownership
    from tidegate.broker.replica import Replica

log = logging.getLogger(__name__)

_BACKOFF_FIRST_S = 0.05
_BACKOFF_MAX_S = 2.0
MOVE_COUNT_MAX = 1000
MOVE_BYTES_MAX = 8 * 1024 * 1024
# Deaths that a message keeps in its history; older ones are dropped.
DEATHS_MAX = 100
# This many deaths without a delivery within this time mean that two full queues are each other's
# dead letters.
_CIRCLES_MAX = 16
_CIRCLES_S = 60.0


class DeadLetter:
    """A message on its way to another queue."""

    __slots__ = ("attributes", "context", "payload", "priority", "receiver", "sender", "span")

    def __init__(self, span: Span, receiver: int | None, attributes: Attributes) -> None:
        segment, offset = span.segment, span.low
        self.span = span
        self.payload = segment.body(offset, offset + 1)
        self.priority = segment.priority
        self.sender = segment.sender(offset)
        self.context = segment.context(offset)
        self.receiver = receiver
        self.attributes = attributes


class DeadLetterMover:
    """Moves given-up messages and redrives dead letters, for all replicas of a node."""

    def __init__(self, context: NodeContext, ownership: Ownership) -> None:
        self._context = context
        self._ownership = ownership
        # Messages that wait to be moved, by source. One task for each source moves them in order,
        # as many at once as fit into a commit.
        self._given_up: dict[Replica, deque[DeadLetter]] = {}
        self._movers: set[asyncio.Task[None]] = set()

    # Giving up

    def dead_letter(
        self, source: Replica, spans: list[Span], reason: DeathReason, error: str | None
    ) -> None:
        """Move messages, already taken out of `source`, to its dead letters.

        Without a dead letter queue they are dropped, as the policy declares.
        """
        if source.info.policy.dead_letter_queue(source.context.logical_name) is None:
            # There is no place for them, by declared policy.
            source.meters.dropped.add(sum(map(len, spans)))
            source.outgoing.drop(spans)
            return
        is_new = source not in self._given_up
        waiting = self._given_up.setdefault(source, deque())
        now = self._context.clock.wall()
        circling: list[Span] = []
        for span in spans:
            for letter in _dead(span, source.context.logical_name, reason, error, now):
                if _is_circling(letter.attributes.deaths or []):
                    circling.append(letter.span)
                else:
                    waiting.append(letter)
        if circling:
            log.warning("dropped, since dead letters of %s come back to it", source.info.name)
            source.meters.dropped.add(len(circling))
            source.outgoing.drop(circling)
        if is_new:
            mover = asyncio.create_task(self._bury_all(source, waiting), name="bury")
            self._movers.add(mover)
            mover.add_done_callback(self._movers.discard)

    async def _bury_all(self, source: Replica, waiting: deque[DeadLetter]) -> None:
        try:
            while waiting and not source.fenced:
                await self._bury(source, [waiting.popleft() for _ in range(_fitting(waiting))])
        finally:
            del self._given_up[source]

    async def _bury(self, source: Replica, letters: list[DeadLetter]) -> None:
        backoff_s = _BACKOFF_FIRST_S
        default = source.context.logical_name + DEAD_SUFFIX
        while not source.fenced:
            # The policy may have changed since. What was given up under the old one is kept all the
            # same.
            grave = source.info.policy.dead_letter_queue(source.context.logical_name) or default
            try:
                target = await self._open(grave)
                if source.info.durable and not target.info.durable:
                    # A durable message cannot go to a transient queue. Delivering it again would
                    # not help either.
                    target = await self._open(default)
                if source.info.durable and not target.info.durable:
                    raise Unavailable(f"queue {target.info.title} is transient: name another")
                if share_store(source.info.queue_id, target.info.queue_id):
                    await self._move(source, target, letters, DEAD)
                else:
                    await self._copy(source, target, letters)
            except RetryLater as failure:
                log.warning("dead letters of %s wait: %s", source.info.name, failure)
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)
            except Exception:
                log.exception("dead letters of %s cannot be moved", source.info.name)
                source.outgoing.stay([letter.span for letter in letters])
                return
            else:
                source.meters.dead_lettered.add(len(letters))
                return

    async def _open(self, name: str) -> Replica:
        """Return the queue of that name at this node, creating it if needed."""
        store = self._context.store
        info = await store.find_queue(None, name)
        if info is None:
            info = await store.create_queue(name, True, DEAD_LETTER_POLICY)
        if info is None:
            raise Unavailable(f"queue {name!r} is being made: try again")
        try:
            return await self._ownership.bring_here(info.queue_id)
        except QueueNotExisting:
            raise Unavailable(f"queue {name!r} was deleted just now: it is made again") from None

    async def drain(self) -> None:
        """Wait until no move is running."""
        await asyncio.gather(*self._movers, return_exceptions=True)

    async def abort(self) -> None:
        """Cancel all moves; the messages are still in their queues."""
        for mover in self._movers:
            mover.cancel()
        await self.drain()

    # Redrive

    async def redrive(self, source: Replica, packet: Redrive, guard: Authorizer) -> int:
        """Send dead letters back to the queue they died in, or to another; return how many went."""
        left = packet.limit if packet.limit is not None else 1 << 62
        wanted = None if packet.message_ids is None else set(packet.message_ids)
        put_aside: list[Span] = []
        count = 0
        try:
            while left > 0 and not source.fenced:
                spans = source.outgoing.take_ready(min(MOVE_COUNT_MAX, left))
                if not spans and not await source.dispatch.tail.more():
                    break
                chosen, others = _selected(spans, wanted, packet.reason)
                put_aside += others
                async for moved in self._send_back(source, chosen, packet.to, guard):
                    count += moved
                    left -= moved
        except (Unavailable, NotOwner, StaleEpoch) as failure:
            if not count:
                raise
            # The client would repeat the request, and lose this count.
            went = "1 message went" if count == 1 else f"{count} messages went"
            raise IoFailure(f"{failure}; {went} back before") from None
        finally:
            source.outgoing.stay(put_aside)
        return count

    async def _send_back(
        self, source: Replica, spans: list[Span], to: str | None, guard: Authorizer
    ) -> AsyncIterator[int]:
        """Send letters back, and yield the number for each target."""
        by_target: dict[str, list[DeadLetter]] = {}
        nowhere: list[Span] = []
        for span in spans:
            letter = _revived(span)
            name = to or _origin(span)
            if name is None:
                nowhere.append(span)
            else:
                by_target.setdefault(name, []).append(letter)
        waiting = {name: [letter.span for letter in letters] for name, letters in by_target.items()}
        try:
            if nowhere:
                raise InvalidValue(
                    f"message {nowhere[0].first_id} of {source.info.title} did not die: "
                    "name the queue it shall go to"
                )
            for name in by_target:
                # Checked only here, where it is known where the messages died.
                guard.require(Right.WRITE, name)
            for name, letters in by_target.items():
                info = await self._context.store.find_queue(None, name)
                if info is None:
                    raise QueueNotExisting(f"no queue named {name!r}: create it, or name another")
                target = await self._ownership.bring_here(info.queue_id)
                if target is source:
                    raise InvalidValue(f"queue {name!r} is where they are: name another")
                await self._move(source, target, letters, MOVED)
                yield len(waiting.pop(name))
        finally:
            left = [span for spans in waiting.values() for span in spans]
            source.outgoing.stay([*nowhere, *left])

    # The move itself

    async def _move(
        self, source: Replica, target: Replica, letters: list[DeadLetter], outcome: str
    ) -> None:
        spans = [letter.span for letter in letters]
        settlement = source.outgoing.settlement_of(spans)
        if settlement is not None and not target.info.durable:
            raise InvalidValue(
                f"queue {target.info.title} is transient: a durable message cannot go there"
            )
        now = self._context.clock.wall()
        segments: list[Segment] = []
        try:
            segments.extend(_segment(target, alike, now) for alike in _alike(letters))
            if target.info.durable:
                crash_point("before-move")
                writes = [Write(segment, target.epoch, [], []) for segment in segments]
                settlements = [] if settlement is None else [settlement]
                await commit_once(self._context.store, writes, settlements)
        except BaseException:
            for segment in segments:
                target.intake.arrivals.not_coming(segment.first_id)
            raise
        crash_point("after-move")
        source.outgoing.on_left(spans, settlement, outcome)
        for segment in segments:
            target.intake.arrivals.on_stored(segment)

    async def _copy(self, source: Replica, target: Replica, letters: list[DeadLetter]) -> None:
        """Copy letters to a queue in another store, then settle them here.

        Each letter is a batch of its own: the producer id is derived from the source queue, and the
        number is the message id. If the node dies in between, the next owner gives the letter up
        again, and the target recognizes it.
        """
        producer = -source.info.queue_id
        new = [
            each for each in letters if not target.intake.is_stored(producer, each.span.first_id)
        ]
        now = self._context.clock.wall()
        writes: list[Write] = []
        try:
            for alike in _alike(new):
                numbers = [letter.span.first_id for letter in alike]
                writes.append(
                    Write(
                        _segment(target, alike, now),
                        target.epoch,
                        [producer] * len(numbers),
                        numbers,
                    )
                )
            if writes:
                crash_point("before-move")
                await commit_once(self._context.store, writes, [])
        except BaseException:
            for write in writes:
                target.intake.arrivals.not_coming(write.segment.first_id)
            raise
        crash_point("after-move")
        for write in writes:
            for number in write.batches:
                target.intake.remember(producer, number)
            target.intake.arrivals.on_stored(write.segment)
        source.outgoing.drop([letter.span for letter in letters], DEAD)


def _is_circling(deaths: list[Death]) -> bool:
    """Return whether a message moves in a circle without ever being delivered."""
    latest = deaths[-_CIRCLES_MAX:]
    return (
        len(latest) == _CIRCLES_MAX
        and latest[-1].at - latest[0].at < _CIRCLES_S
        and all(death.reason in (DeathReason.OVERFLOW, DeathReason.EXPIRED) for death in latest)
    )


def _fitting(letters: deque[DeadLetter]) -> int:
    """Return how many of the first letters fit into one commit."""
    count = size_bytes = 0
    for letter in letters:
        size_bytes += len(letter.payload)
        if count and (count == MOVE_COUNT_MAX or size_bytes > MOVE_BYTES_MAX):
            break
        count += 1
    return count


def _each(span: Span) -> list[Span]:
    """Return a span as spans of one message each."""
    return [
        Span(span.segment, offset, offset + 1, span.state) for offset in range(span.low, span.high)
    ]


def _attributes(segment: Segment, offset: int) -> Attributes:
    attributes = None if segment.attributes is None else segment.attributes[offset]
    return attributes or Attributes()


def _dead(
    span: Span, queue: str, reason: DeathReason, error: str | None, now: float
) -> list[DeadLetter]:
    """Return the messages of a span as dead letters."""
    letters = []
    segment = span.segment
    for each in _each(span):
        offset = each.low
        attributes = _attributes(segment, offset)
        receivers = segment.receivers
        death = Death(
            queue=queue,
            reason=reason,
            error=error,
            deliveries=(segment.attempts or {}).get(offset, 0),
            at=now,
            message_id=each.first_id,
            # Unaddressed as a dead letter, so that an operator can read it. Redrive restores the
            # receiver.
            receiver=None if receivers is None else receivers[offset if len(receivers) > 1 else 0],
            failures=(segment.failures or {}).get(offset, []),
            group=attributes.group,
            tenant=attributes.tenant,
        )
        attributes = msgspec.structs.replace(
            attributes,
            # A dead letter must not expire, wait, or hold up its group.
            expires_at=None,
            deliver_at=None,
            group=None,
            tenant=None,
            deaths=[*(attributes.deaths or ())[-(DEATHS_MAX - 1) :], death],
        )
        letters.append(DeadLetter(each, None, attributes))
    return letters


def _origin(span: Span) -> str | None:
    deaths = _attributes(span.segment, span.low).deaths
    return deaths[-1].queue if deaths else None


def _revived(span: Span) -> DeadLetter:
    """Return a dead letter as it was before it died, with its history."""
    attributes = _attributes(span.segment, span.low)
    if not attributes.deaths:
        return DeadLetter(span, None, attributes)
    death = attributes.deaths[-1]
    revived = msgspec.structs.replace(attributes, group=death.group, tenant=death.tenant)
    return DeadLetter(span, death.receiver, revived)


def _selected(
    spans: list[Span], wanted: set[int] | None, reason: str | None
) -> tuple[list[Span], list[Span]]:
    """Split messages into the selected ones and the others."""
    chosen: list[Span] = []
    others: list[Span] = []
    for each in [each for span in spans for each in _each(span)]:
        deaths = _attributes(each.segment, each.low).deaths
        meant = (wanted is None or each.first_id in wanted) and (
            reason is None or (deaths is not None and deaths[-1].reason == reason)
        )
        (chosen if meant else others).append(each)
    return chosen, others


def _alike(letters: list[DeadLetter]) -> list[list[DeadLetter]]:
    """Return groups of letters that may share a segment, in order, within its size limits."""
    open_lines: dict[tuple[int, bool], tuple[list[DeadLetter], int]] = {}
    lines: list[list[DeadLetter]] = []
    for letter in letters:
        kind = (letter.priority, letter.receiver is not None)
        line, line_bytes = open_lines.get(kind, ([], 0))
        line_bytes += len(letter.payload)
        if not line or len(line) == SEGMENT_COUNT_MAX or line_bytes > SEGMENT_BYTES_MAX:
            line, line_bytes = [], len(letter.payload)
            lines.append(line)
        line.append(letter)
        open_lines[kind] = (line, line_bytes)
    return lines


def _segment(target: Replica, letters: list[DeadLetter], now: float) -> Segment:
    """Return letters of one kind as a segment of the target queue."""
    addressed = letters[0].receiver is not None
    return Segment(
        queue_id=target.info.queue_id,
        first_id=target.intake.arrivals.take_ids(len(letters)),
        priority=letters[0].priority,
        arrived_at=now,
        lengths=[len(letter.payload) for letter in letters],
        payload=b"".join(letter.payload for letter in letters),
        senders=[letter.sender for letter in letters],
        receivers=[letter.receiver or 0 for letter in letters] if addressed else None,
        contexts=_unless_empty([letter.context for letter in letters]),
        attributes=[letter.attributes for letter in letters],
        # A client may have had it before. It stays flagged as redelivered in any queue.
        reloaded=True,
    )


def _unless_empty(column: list[int | None]) -> list[int | None] | None:
    return None if all(entry is None for entry in column) else column
