"""Messages that are given up move to their queue's dead letters, and on request back.

A move is one transaction: put there, settled here, so a message is never in both queues and never
in neither. To another store it is copied first, under a name by which it is known there. Both
queues are brought to this node for it. What cannot be moved yet (the store is away, the other queue
is on its way) is tried again until it can, or until the queue has a new owner, who finds the
message where it was.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from tidegate.core.crash import crash_point
from tidegate.core.errors import (
    InvalidValue,
    QueueNotExisting,
    RetryLater,
    Unavailable,
)
from tidegate.core.model import (
    DEAD_LETTER_POLICY,
    DEAD_SUFFIX,
    Attributes,
    Death,
    DeathReason,
)
from tidegate.core.ports import Write
from tidegate.core.replication import are_together
from tidegate.core.segment import Segment
from tidegate.core.users import Right
from tidegate.node.batch import SEGMENT_BYTES_MAX, SEGMENT_COUNT_MAX
from tidegate.node.guard import Guard
from tidegate.node.joint_commit import commit_once
from tidegate.node.lifecycle_watch import DEAD, MOVED
from tidegate.queueing.span import Span
from tidegate.wire.packets.dead_letters import Redrive

if TYPE_CHECKING:
    from tidegate.node.replica import Replica
    from tidegate.node.server import Node

log = logging.getLogger(__name__)

_BACKOFF_FIRST_S = 0.05
_BACKOFF_MAX_S = 2.0
MOVE_COUNT_MAX = 1000
MOVE_BYTES_MAX = 8 * 1024 * 1024
# How much of its history a message takes along.
DEATHS_MAX = 100
# So many deaths of which no consumer knew, so soon after each other: queues that are each other's
# dead letters, and full.
_CIRCLES_MAX = 16
_CIRCLES_S = 60.0


class Letter:
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


class DeadLetters:
    """Moves between queues, for all replicas of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        # What waits to be moved, and who moves it: in its order, as many as wait in one commit.
        self._given_up: dict[Replica, deque[Letter]] = {}
        self._movers: set[asyncio.Task[None]] = set()

    # Given up

    def give_up(
        self, source: Replica, spans: list[Span], reason: DeathReason, error: str | None
    ) -> None:
        """These messages are nobody's any more: move them to the dead letters."""
        if source.info.policy.dead_letter_queue(source.holding.logical_name) is None:
            # There is no place for them, by declared policy.
            source.meters.dropped.add(sum(map(len, spans)))
            source.departures.drop(spans)
            return
        is_new = source not in self._given_up
        waiting = self._given_up.setdefault(source, deque())
        now = self._node.clock.wall()
        circling: list[Span] = []
        for span in spans:
            for letter in _dead(span, source.holding.logical_name, reason, error, now):
                if _is_circling(letter.attributes.deaths or []):
                    circling.append(letter.span)
                else:
                    waiting.append(letter)
        if circling:
            log.warning("dropped, since dead letters of %s come back to it", source.info.name)
            source.meters.dropped.add(len(circling))
            source.departures.drop(circling)
        if is_new:
            mover = asyncio.create_task(self._bury_all(source, waiting), name="bury")
            self._movers.add(mover)
            mover.add_done_callback(self._movers.discard)

    async def _bury_all(self, source: Replica, waiting: deque[Letter]) -> None:
        try:
            while waiting and not source.fenced:
                await self._bury(source, [waiting.popleft() for _ in range(_fitting(waiting))])
        finally:
            del self._given_up[source]

    async def _bury(self, source: Replica, letters: list[Letter]) -> None:
        backoff_s = _BACKOFF_FIRST_S
        default = source.holding.logical_name + DEAD_SUFFIX
        while not source.fenced:
            # The policy may have changed since: what was given up is kept all the same.
            grave = source.info.policy.dead_letter_queue(source.holding.logical_name) or default
            try:
                target = await self._open(grave)
                if source.info.durable and not target.info.durable:
                    # What is stored cannot go there; delivered again it would be no better.
                    target = await self._open(default)
                if source.info.durable and not target.info.durable:
                    raise Unavailable(f"queue {target.info.title} is transient: name another")
                if are_together(source.info.queue_id, target.info.queue_id):
                    await self._move(source, target, letters, DEAD)
                else:
                    await self._copy(source, target, letters)
            except RetryLater as failure:
                log.warning("dead letters of %s wait: %s", source.info.name, failure)
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)
            except Exception:
                log.exception("dead letters of %s cannot be moved", source.info.name)
                source.departures.stay([letter.span for letter in letters])
                return
            else:
                source.meters.dead_lettered.add(len(letters))
                return

    async def _open(self, name: str) -> Replica:
        """The queue of that name at this node, made if there is none."""
        store = self._node.store
        info = await store.find_queue(None, name)
        if info is None:
            info = await store.create_queue(name, True, DEAD_LETTER_POLICY)
        if info is None:
            raise Unavailable(f"queue {name!r} is being made: try again")
        try:
            return await self._node.ownership.bring_here(info.queue_id)
        except QueueNotExisting:
            raise Unavailable(f"queue {name!r} was deleted just now: it is made again") from None

    async def drain(self) -> None:
        """Return when nothing is on its way."""
        await asyncio.gather(*self._movers, return_exceptions=True)

    async def abort(self) -> None:
        """Move nothing more: it is found where it is."""
        for mover in self._movers:
            mover.cancel()
        await self.drain()

    # Back

    async def redrive(self, source: Replica, packet: Redrive, guard: Guard) -> int:
        """Send dead letters back to where they died, or elsewhere; how many went."""
        left = packet.limit if packet.limit is not None else 1 << 62
        wanted = None if packet.message_ids is None else set(packet.message_ids)
        put_aside: list[Span] = []
        count = 0
        try:
            while left > 0 and not source.fenced:
                spans = source.departures.take_ready(min(MOVE_COUNT_MAX, left))
                if not spans and not await source.dispatch.tail.more():
                    break
                chosen, others = _selected(spans, wanted, packet.reason)
                put_aside += others
                moved = await self._send_back(source, chosen, packet.to, guard)
                count += moved
                left -= moved
        finally:
            source.departures.stay(put_aside)
        return count

    async def _send_back(
        self, source: Replica, spans: list[Span], to: str | None, guard: Guard
    ) -> int:
        by_target: dict[str, list[Letter]] = {}
        nowhere: list[Span] = []
        for span in spans:
            letter = _revived(span)
            name = to or _origin(span)
            if name is None:
                nowhere.append(span)
            else:
                by_target.setdefault(name, []).append(letter)
        waiting = {name: [letter.span for letter in letters] for name, letters in by_target.items()}
        count = 0
        try:
            if nowhere:
                raise InvalidValue(
                    f"message {nowhere[0].first_id} of {source.info.title} did not die: "
                    "name the queue it shall go to"
                )
            for name in by_target:
                # Where they died is found out only here: whoever sends them there must be let.
                guard.require(Right.WRITE, name)
            for name, letters in by_target.items():
                info = await self._node.store.find_queue(None, name)
                if info is None:
                    raise QueueNotExisting(f"no queue named {name!r}: create it, or name another")
                target = await self._node.ownership.bring_here(info.queue_id)
                if target is source:
                    raise InvalidValue(f"queue {name!r} is where they are: name another")
                await self._move(source, target, letters, MOVED)
                count += len(waiting.pop(name))
        finally:
            left = [span for spans in waiting.values() for span in spans]
            source.departures.stay([*nowhere, *left])
        return count

    # The move itself

    async def _move(
        self, source: Replica, target: Replica, letters: list[Letter], outcome: str
    ) -> None:
        spans = [letter.span for letter in letters]
        settlement = source.departures.settlement_of(spans)
        if settlement is not None and not target.info.durable:
            raise InvalidValue(
                f"queue {target.info.title} is transient: a durable message cannot go there"
            )
        now = self._node.clock.wall()
        segments: list[Segment] = []
        try:
            segments.extend(_segment(target, alike, now) for alike in _alike(letters))
            if target.info.durable:
                crash_point("before-move")
                writes = [Write(segment, target.epoch, [], []) for segment in segments]
                settlements = [] if settlement is None else [settlement]
                await commit_once(self._node.store, writes, settlements)
        except BaseException:
            for segment in segments:
                target.intake.arrivals.not_coming(segment.first_id)
            raise
        crash_point("after-move")
        source.departures.left(spans, settlement, outcome)
        for segment in segments:
            target.intake.arrivals.came(segment)

    async def _copy(self, source: Replica, target: Replica, letters: list[Letter]) -> None:
        """To a queue in another store: stored there, once, and only then done here.

        Each letter is a batch of its own, of a producer that stands for the queue that it died in:
        who dies in between finds it again, gives it up again, and it is known there.
        """
        producer = -source.info.queue_id
        new = [each for each in letters if not target.intake.knows(producer, each.span.first_id)]
        now = self._node.clock.wall()
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
                await commit_once(self._node.store, writes, [])
        except BaseException:
            for write in writes:
                target.intake.arrivals.not_coming(write.segment.first_id)
            raise
        crash_point("after-move")
        for write in writes:
            for number in write.batches:
                target.intake.remember(producer, number)
            target.intake.arrivals.came(write.segment)
        source.departures.drop([letter.span for letter in letters], DEAD)


def _is_circling(deaths: list[Death]) -> bool:
    """Whether a message is given up again and again, and nobody ever gets to see it."""
    latest = deaths[-_CIRCLES_MAX:]
    return (
        len(latest) == _CIRCLES_MAX
        and latest[-1].at - latest[0].at < _CIRCLES_S
        and all(death.reason in (DeathReason.OVERFLOW, DeathReason.EXPIRED) for death in latest)
    )


def _fitting(letters: deque[Letter]) -> int:
    """How many of them go together."""
    count = size_bytes = 0
    for letter in letters:
        size_bytes += len(letter.payload)
        if count and (count == MOVE_COUNT_MAX or size_bytes > MOVE_BYTES_MAX):
            break
        count += 1
    return count


def _each(span: Span) -> list[Span]:
    """A span as spans of one message."""
    return [
        Span(span.segment, offset, offset + 1, span.state) for offset in range(span.low, span.high)
    ]


def _attributes(segment: Segment, offset: int) -> Attributes:
    attributes = None if segment.attributes is None else segment.attributes[offset]
    return attributes or Attributes()


def _dead(
    span: Span, queue: str, reason: DeathReason, error: str | None, now: float
) -> list[Letter]:
    """The messages of a span as dead letters."""
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
            # For anyone from here on, so that people can look; it goes back to whom it was for.
            receiver=None if receivers is None else receivers[offset if len(receivers) > 1 else 0],
            failures=(segment.failures or {}).get(offset, []),
            group=attributes.group,
            tenant=attributes.tenant,
        )
        attributes = msgspec.structs.replace(
            attributes,
            # A dead letter neither expires nor waits, nor holds its group up.
            expires_at=None,
            deliver_at=None,
            group=None,
            tenant=None,
            deaths=[*(attributes.deaths or ())[-(DEATHS_MAX - 1) :], death],
        )
        letters.append(Letter(each, None, attributes))
    return letters


def _origin(span: Span) -> str | None:
    deaths = _attributes(span.segment, span.low).deaths
    return deaths[-1].queue if deaths else None


def _revived(span: Span) -> Letter:
    """A dead letter as it was, with its history."""
    attributes = _attributes(span.segment, span.low)
    if not attributes.deaths:
        return Letter(span, None, attributes)
    death = attributes.deaths[-1]
    revived = msgspec.structs.replace(attributes, group=death.group, tenant=death.tenant)
    return Letter(span, death.receiver, revived)


def _selected(
    spans: list[Span], wanted: set[int] | None, reason: str | None
) -> tuple[list[Span], list[Span]]:
    """Messages one by one: those that are meant, and the others."""
    chosen: list[Span] = []
    others: list[Span] = []
    for each in [each for span in spans for each in _each(span)]:
        deaths = _attributes(each.segment, each.low).deaths
        meant = (wanted is None or each.first_id in wanted) and (
            reason is None or (deaths is not None and deaths[-1].reason == reason)
        )
        (chosen if meant else others).append(each)
    return chosen, others


def _alike(letters: list[Letter]) -> list[list[Letter]]:
    """Letters that may share a segment, in their order, within the bounds of one."""
    open_lines: dict[tuple[int, bool], tuple[list[Letter], int]] = {}
    lines: list[list[Letter]] = []
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


def _segment(target: Replica, letters: list[Letter], now: float) -> Segment:
    """Letters that are alike as a segment of the queue they go to."""
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
        # Somebody has had it, or may have: it says so wherever it goes.
        reloaded=True,
    )


def _unless_empty(column: list[int | None]) -> list[int | None] | None:
    return None if all(entry is None for entry in column) else column
