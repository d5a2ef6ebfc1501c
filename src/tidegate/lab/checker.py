"""Judges a history: what was promised, against what clients saw.

One pass over the events in the order of their times, with one small record per message, so O(n).
What must be zero:

    lost           confirmed, but nobody has let go of it, and it is not in the store at the end
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

A delivery is not the end of a message: whoever has it may be killed, or give it back. It is let go
of by an acknowledgement that happened or may have, the latter only until it is delivered again:
what somebody holds after that has to be acknowledged or to come once more. An acknowledgement that
failed counts for nothing, but takes nothing from others: a consumer whose lease was lost hears so
while the next one is long done.

What was confirmed but not let go of by the deadline, while the store still has it or cannot be
asked, makes the run inconclusive. That is never a pass.
"""

from __future__ import annotations

import math
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


class Custody:
    """Whether somebody has let go of a message, or still has to get it.

    Events of one process come in their order, those of several may come in any.
    """

    __slots__ = ("_given_at", "_tried_at", "is_acked")

    def __init__(self) -> None:
        self.is_acked = False
        self._given_at = -math.inf
        # Acknowledgements that may have happened, by process and which of its deliveries it was.
        self._tried_at: dict[tuple[str, int], float] = {}

    def note(self, event: Event) -> None:
        """A delivery of the message, or what became of an acknowledgement."""
        held_as = (event.process, event.delivery)
        if event.op == "deliver":
            self._given_at = max(self._given_at, event.t)
        elif event.phase == "ok":
            self.is_acked = True
        elif event.phase == "fail":
            self._tried_at.pop(held_as, None)
        elif event.phase == "invoke":
            self._tried_at[held_as] = event.t
        else:
            # Its beginning counts, if it is known: what is delivered after that was not done by it.
            self._tried_at.setdefault(held_as, event.t)

    @property
    def is_let_go(self) -> bool:
        return self.is_acked or any(t >= self._given_at for t in self._tried_at.values())


class Outstanding:
    """What was confirmed and nobody has let go of yet, in histories that are still being written.

    Drained is when there is nothing of it: the verdict asks for the same.
    """

    def __init__(self) -> None:
        self._custodies: dict[MessageKey, Custody] = {}
        self._confirmed: set[MessageKey] = set()
        self._outstanding: set[MessageKey] = set()

    def __len__(self) -> int:
        return len(self._outstanding)

    def feed(self, event: Event) -> None:
        key = event.key
        if event.op != "put":
            self._custody(key).note(event)
        elif event.phase == "ok":
            self._confirmed.add(key)
        if key in self._confirmed and not self._custody(key).is_let_go:
            self._outstanding.add(key)
        else:
            self._outstanding.discard(key)

    def _custody(self, key: MessageKey) -> Custody:
        custody = self._custodies.get(key)
        if custody is None:
            custody = self._custodies[key] = Custody()
        return custody


class _Record:
    """What is known about one message."""

    __slots__ = (
        "confirmed",
        "custody",
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
        self.custody = Custody()
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
        else:
            self._ack(event)

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
        if record.custody.is_acked:
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
        record.custody.note(event)
        record.deliveries += 1
        if record.deliveries == 1:
            found.delivered += 1

    def _ack(self, event: Event) -> None:
        if event.phase == "ok":
            self._found.acks_confirmed += 1
        record = self._records.get(event.key)
        if record is not None:
            record.custody.note(event)

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
        held = None if stored is None else frozenset(stored)
        highest_ids: dict[_Stream, int] = {}
        # Puts of one producer stand in the order of its numbers.
        for key, record in self._records.items():
            if record.confirmed and not record.custody.is_let_go:
                if held is None or key in held:
                    found.undrained += 1
                else:
                    found.lost += 1
                    self._say("lost after a delivery" if record.deliveries else "lost", key)
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
