"""Judges a history: what was promised, against what clients saw.

One pass over the events in the order of their times, with one small record per message, so O(n).
What must be zero:

    lost           confirmed, but never delivered and not in the store at the end
    unexpected     delivered, but never put, or refused, or with another payload
    unflagged      delivered again without saying so
    out_of_order   first deliveries of a producer, within a queue and priority, that do not grow
    acked_again    delivered after its acknowledgement was confirmed
    stored_twice   one put under two message ids

Order holds for *first* deliveries. A message that comes back (its consumer died, its node was
started again) may come after younger ones, and it is flagged: where several consumers share a
queue, what one of them held and never looked at reaches another late, so there only unflagged
deliveries of the same consumer are compared. Message ids tell the order in the queue itself and
must grow with the producer's numbers whoever consumes.

A logical queue keeps order per replica only, and a message that is exchanged gets another id: there
order and ids say nothing, the rest holds. But the messages of a group come one after the other,
wherever they are and whoever consumes: of each producer's, first deliveries grow.

What was confirmed but not delivered by the deadline, while the store still has it or cannot be
asked, makes the run inconclusive. That is never a pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

import msgspec

from tidegate.lab.history import Event, MessageKey

EXAMPLES_MAX = 10

Outcome = Literal["pass", "fail", "inconclusive"]
# A producer's messages in a queue with one priority keep their order.
_Stream = tuple[str, str, int]


class Verdict(msgspec.Struct, kw_only=True):
    """What the checker found."""

    put: int = 0
    confirmed: int = 0
    refused: int = 0
    # Puts that may or may not have happened.
    unknown: int = 0
    delivered: int = 0
    deliveries: int = 0
    duplicates_flagged: int = 0
    acks_confirmed: int = 0

    lost: int = 0
    unexpected: int = 0
    unflagged: int = 0
    out_of_order: int = 0
    acked_again: int = 0
    stored_twice: int = 0

    undrained: int = 0
    examples: list[str] = []

    @property
    def violations(self) -> int:
        return (
            self.lost
            + self.unexpected
            + self.unflagged
            + self.out_of_order
            + self.acked_again
            + self.stored_twice
        )

    @property
    def outcome(self) -> Outcome:
        if self.violations:
            return "fail"
        return "inconclusive" if self.undrained else "pass"

    def __str__(self) -> str:
        text = (
            f"{self.outcome}: {self.confirmed} confirmed, lost {self.lost}, "
            f"unexpected {self.unexpected}, unflagged {self.unflagged}, "
            f"out of order {self.out_of_order}, acked again {self.acked_again}, "
            f"stored twice {self.stored_twice}; {self.duplicates_flagged} duplicates flagged, "
            f"{self.unknown} puts unknown, {self.refused} refused, {self.undrained} not drained"
        )
        return "\n  ".join([text, *self.examples])


class _Record:
    """What is known about one message."""

    __slots__ = (
        "acked",
        "confirmed",
        "deliveries",
        "message_id",
        "payload_hash",
        "priority",
        "refused",
    )

    def __init__(self, payload_hash: str, priority: int) -> None:
        self.payload_hash = payload_hash
        self.priority = priority
        self.confirmed = False
        self.refused = False
        self.acked = False
        self.deliveries = 0
        self.message_id = 0


class Checker:
    """Feed it events in the order of their times, then ask for the verdict."""

    def __init__(
        self, *, sole_consumer: Collection[str] = (), replicated: Collection[str] = ()
    ) -> None:
        # Queues with one consumer: there even what comes back comes in order.
        self._sole_consumer = frozenset(sole_consumer)
        # Logical queues: neither order nor ids.
        self._replicated = frozenset(replicated)
        self._records: dict[MessageKey, _Record] = {}
        self._first_seen: dict[_Stream, int] = {}
        self._seen_by: dict[tuple[str, _Stream], int] = {}
        self._found = Verdict(examples=[])

    def feed(self, event: Event) -> None:
        if event.op == "put":
            self._put(event)
        elif event.op == "deliver":
            self._deliver(event)
        elif event.phase == "ok":
            self._found.acks_confirmed += 1
            record = self._records.get(event.key)
            if record is not None:
                record.acked = True

    def _put(self, event: Event) -> None:
        found = self._found
        if event.phase == "invoke":
            found.put += 1
            self._records[event.key] = _Record(event.payload_hash, event.priority)
            return
        record = self._records.get(event.key)
        if record is None:
            found.unexpected += 1
            self._say("unexpected: an answer to a put that nobody made", event)
            return
        if event.phase == "ok":
            found.confirmed += 1
            record.confirmed = True
            self._same_id(record, event)
        elif event.phase == "fail":
            found.refused += 1
            record.refused = True
            if record.deliveries:
                found.unexpected += 1
                self._say("unexpected: delivered, and then refused", event)

    def _deliver(self, event: Event) -> None:
        found = self._found
        found.deliveries += 1
        record = self._records.get(event.key)
        if record is None or record.refused or record.payload_hash != event.payload_hash:
            found.unexpected += 1
            self._say("unexpected delivery", event)
            if record is None:
                return
        if record.acked:
            found.acked_again += 1
            self._say("delivered after a confirmed ack", event)
        if record.deliveries:
            if event.redelivered:
                found.duplicates_flagged += 1
            else:
                found.unflagged += 1
                self._say("delivered again and not flagged", event)
        self._same_id(record, event)
        self._check_order(record, event)
        record.deliveries += 1
        if record.deliveries == 1:
            found.delivered += 1

    def _same_id(self, record: _Record, event: Event) -> None:
        if not event.message_id or event.queue in self._replicated:
            return
        if record.message_id and record.message_id != event.message_id:
            self._found.stored_twice += 1
            self._say(f"stored twice: also under id {record.message_id}", event)
        record.message_id = event.message_id

    def _check_order(self, record: _Record, event: Event) -> None:
        if event.queue in self._replicated and not event.group:
            return
        stream = (event.queue, f"{event.producer} {event.group}", event.priority)
        late = False
        is_one_by_one = event.group or event.queue in self._sole_consumer
        if is_one_by_one and not record.deliveries:
            late = event.seq < self._first_seen.get(stream, -1)
            self._first_seen[stream] = max(self._first_seen.get(stream, -1), event.seq)
        elif not event.redelivered and not record.deliveries:
            seen = (event.process, stream)
            late = event.seq < self._seen_by.get(seen, -1)
            self._seen_by[seen] = max(self._seen_by.get(seen, -1), event.seq)
        if late:
            self._found.out_of_order += 1
            self._say("out of order", event)

    def verdict(self, *, stored: Collection[MessageKey] | None) -> Verdict:
        """The judgement. `stored`: what the store still holds; None: it could not be asked."""
        found = self._found
        highest_ids: dict[_Stream, int] = {}
        # Puts of one producer stand in the order of its numbers.
        for key, record in self._records.items():
            if record.confirmed and not record.deliveries:
                if stored is None or key in stored:
                    found.undrained += 1
                else:
                    found.lost += 1
                    self._say("lost", key)
            if record.message_id:
                stream = (key[0], key[1], record.priority)
                highest_id = highest_ids.get(stream, 0)
                if record.message_id < highest_id:
                    found.out_of_order += 1
                    self._say(f"stored behind {highest_id}, as {record.message_id}", key)
                highest_ids[stream] = max(record.message_id, highest_id)
        found.unknown = found.put - found.confirmed - found.refused
        return found

    def _say(self, what: str, about: Event | MessageKey) -> None:
        if len(self._found.examples) >= EXAMPLES_MAX:
            return
        if isinstance(about, Event):
            at = (
                f"{about.t:.3f} {about.process} {about.op} {about.phase} {about.queue} "
                f"{about.producer}:{about.seq} id {about.message_id} "
                f"{'redelivered' if about.redelivered else 'first'}"
            )
        else:
            at = f"{about[0]} {about[1]}:{about[2]}"
        self._found.examples.append(f"{what}: {at}")


def check(
    events: Iterable[Event],
    *,
    stored: Collection[MessageKey] | None,
    sole_consumer: Collection[str] = (),
    replicated: Collection[str] = (),
) -> Verdict:
    """Judge a whole history."""
    checker = Checker(sole_consumer=sole_consumer, replicated=replicated)
    for event in events:
        checker.feed(event)
    return checker.verdict(stored=stored)
