"""Histories: the events that clients record outside of the system, for the checker.

Each client process appends JSON lines to a file of its own. Times are CLOCK_MONOTONIC, which all
processes of a machine share, so that the files of a run merge into one history. Most client
processes are never killed and flush their buffer several times a second. A process that the run may
kill, such as a worker, flushes after each event.

An operation begins with `invoke` and ends with `ok`, `fail` or `info`. `fail` means that it did not
happen. `info` means that it may have happened, as after a timeout or a lost connection. A delivery
is a single `ok`.

A client records every acknowledgement before it sends it. An acknowledgement without confirmation
has no second event. The record lets the checker distinguish a handled message from a message that
a consumer only held. A returned message is an `ack` that failed.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Collection, Iterable, Iterator
from heapq import merge
from operator import attrgetter
from pathlib import Path
from typing import Literal, Self

import msgspec

from tidegate.agreements.document import Agreement
from tidegate.agreements.evaluation import AgreementSample, WindowVerdict, judge_window, windows_of

Operation = Literal["put", "deliver", "ack"]
Phase = Literal["invoke", "ok", "fail", "info"]

_FLUSH_BYTES = 64 * 1024


class HistoryEvent(msgspec.Struct, omit_defaults=True):
    """One line of a history."""

    t: float
    process: str
    op: Operation
    phase: Phase
    queue: str
    producer: str
    seq: int
    priority: int = 5
    # 0 means unknown, as after a put that was sent again and was stored already.
    message_id: int = 0
    epoch: int | None = None
    redelivered: bool = False
    payload_hash: str = ""
    # For a delivery: the message's group, within which order holds for all consumers.
    group: str = ""
    # The number of the delivery in its process, because one message may have several deliveries.
    # An acknowledgement has the number of the delivery that it acknowledges.
    delivery: int = 0

    @property
    def key(self) -> MessageKey:
        return (self.queue, self.producer, self.seq)


# A message: its queue, its producer, and its number at that producer.
MessageKey = tuple[str, str, int]


def payload_hash(payload: bytes) -> str:
    """Return a 64-bit hash of a payload, which detects damage and keeps the lines short."""
    return hashlib.blake2b(payload, digest_size=8).hexdigest()


class HistoryWriter:
    """Writes the history of one client process."""

    def __init__(self, path: Path, process: str) -> None:
        self._file = path.open("ab", buffering=0)
        self._process = process
        self._encoder = msgspec.json.Encoder()
        self._buffer = bytearray()

    def note(
        self,
        op: Operation,
        phase: Phase,
        queue: str,
        producer: str,
        seq: int,
        *,
        priority: int = 5,
        message_id: int = 0,
        redelivered: bool = False,
        hash_of: bytes | None = None,
        group: str | None = None,
        delivery: int = 0,
    ) -> None:
        """Append an event with the current time; it stays in the buffer until `flush`."""
        event = HistoryEvent(
            t=time.monotonic(),
            process=self._process,
            op=op,
            phase=phase,
            queue=queue,
            producer=producer,
            seq=seq,
            priority=priority,
            message_id=message_id,
            redelivered=redelivered,
            payload_hash="" if hash_of is None else payload_hash(hash_of),
            group=group or "",
            delivery=delivery,
        )
        self._buffer += self._encoder.encode(event)
        self._buffer += b"\n"
        if len(self._buffer) >= _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._buffer:
            # One write of whole lines, so that a reader of the growing file rarely sees half a
            # line.
            self._file.write(self._buffer)
            self._buffer.clear()

    def close(self) -> None:
        self.flush()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class HistoryFollower:
    """Reads a history while it is being written; each call of `news` returns the new events."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._rest = b""
        self._decoder = msgspec.json.Decoder(HistoryEvent)

    def news(self) -> list[HistoryEvent]:
        """Return the events written since the last call; empty if the file does not exist yet."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [self._decoder.decode(line) for line in lines]


def read_history(path: Path) -> Iterator[HistoryEvent]:
    """Yield the events of one process in the order in which they happened.

    A last line without a newline is skipped: its process is still writing it, or was killed.
    """
    decoder = msgspec.json.Decoder(HistoryEvent)
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield decoder.decode(line)


def merged(histories: Iterable[Iterable[HistoryEvent]]) -> Iterator[HistoryEvent]:
    """Merge the events of all processes in the order of their times."""
    return merge(*histories, key=attrgetter("t"))


# The checker: compares the events that clients recorded with the promises about messages.
#
# Theory of operation
#
# The checker reads the events of all clients once, in the order of their times, with one small
# record per message; its time is O(n). It counts violations, each of which must be zero:
#
#     lost           confirmed, but neither acknowledged nor in the store at the end
#     unexpected     delivered, but never put, or refused, or with another payload
#     unflagged      delivered again without the redelivered flag
#     out_of_order   first deliveries of a producer, in one queue and priority, with falling numbers
#     acked_again    delivered after its acknowledgement was confirmed
#     stored_twice   one put under two message ids
#
# Order. Only *first* deliveries must be in order. A message returns when its consumer dies or its
# node restarts; it may then follow younger messages, and it is flagged. If several consumers share
# a queue, a message that one consumer prefetched but never handled may reach another consumer late.
# There the checker compares only unflagged deliveries of the same consumer. Message ids show the
# order in the queue itself; they must grow with the producer's numbers for any set of consumers.
#
# Logical queues. They keep order per replica only, and a message gets a new id when it is
# transferred to another replica. The checker therefore ignores order and ids there; all other rules
# hold. The messages of a group are an exception: the numbers of their first deliveries must grow
# for each producer, on all replicas and consumers together.
#
# Custody. A delivery is not the end of a message, because its consumer may be killed or may return
# it. A message is settled by an acknowledgement that is confirmed, or whose result is unknown. The
# latter counts only until the next delivery: from then on, a consumer holds the message again, and
# must acknowledge it. A failed acknowledgement counts for nothing. It does not undo that of another
# consumer, because a consumer may learn of its lost lease after the next consumer has finished.
#
# Result. A confirmed message may be unsettled at the end although the store still holds it, or
# while the store cannot be read. Such a message makes the run inconclusive, which is never a pass.


EXAMPLES_MAX = 10

Outcome = Literal["pass", "fail", "inconclusive"]
# Queue, producer and group, priority: the messages that keep their order.
_Stream = tuple[str, str, int]


class CheckResult(msgspec.Struct, kw_only=True):
    """The counts of a checked history, and examples of its violations."""

    put: int = 0
    confirmed: int = 0
    refused: int = 0
    # Puts without a known result.
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


class CustodyTracker:
    """Tells whether a message is settled or must still be delivered.

    The events of one process must arrive in order; events of several processes may interleave.
    """

    __slots__ = ("_given_at", "_tried_at", "is_acked")

    def __init__(self) -> None:
        self.is_acked = False
        self._given_at = -math.inf
        # The times of acknowledgements that may have happened, by process and its delivery number.
        self._tried_at: dict[tuple[str, int], float] = {}

    def note(self, event: HistoryEvent) -> None:
        """Record a delivery or an acknowledgement of the message."""
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
            # The time of the attempt counts, if it is known: the acknowledgement cannot settle a
            # delivery that happened after the attempt.
            self._tried_at.setdefault(held_as, event.t)

    @property
    def is_let_go(self) -> bool:
        """Whether the message is settled: acknowledged, possibly with an unknown result."""
        return self.is_acked or any(t >= self._given_at for t in self._tried_at.values())


class Outstanding:
    """The confirmed messages that are not settled yet, in histories that are still being written.

    The queues are drained when it is empty. `Checker.verdict` uses the same condition.
    """

    def __init__(self) -> None:
        self._custodies: dict[MessageKey, CustodyTracker] = {}
        self._confirmed: set[MessageKey] = set()
        self._outstanding: set[MessageKey] = set()

    def __len__(self) -> int:
        return len(self._outstanding)

    def feed(self, event: HistoryEvent) -> None:
        key = event.key
        if event.op != "put":
            self._custody(key).note(event)
        elif event.phase == "ok":
            self._confirmed.add(key)
        if key in self._confirmed and not self._custody(key).is_let_go:
            self._outstanding.add(key)
        else:
            self._outstanding.discard(key)

    def _custody(self, key: MessageKey) -> CustodyTracker:
        custody = self._custodies.get(key)
        if custody is None:
            custody = self._custodies[key] = CustodyTracker()
        return custody


class _Record:
    """The state of one message."""

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
        self.custody = CustodyTracker()
        self.deliveries = 0
        self.message_id = 0


class Checker:
    """A `Checker` takes events in the order of their times and then returns its verdict."""

    def __init__(
        self, *, sole_consumer: Collection[str] = (), replicated: Collection[str] = ()
    ) -> None:
        # Queues with one consumer, where first deliveries are in order even if they are flagged.
        self._sole_consumer = frozenset(sole_consumer)
        # Logical queues, where neither order nor message ids are checked.
        self._replicated = frozenset(replicated)
        self._records: dict[MessageKey, _Record] = {}
        self._first_seen: dict[_Stream, int] = {}
        self._seen_by: dict[tuple[str, _Stream], int] = {}
        self._found = CheckResult(examples=[])

    def feed(self, event: HistoryEvent) -> None:
        if event.op == "put":
            self._put(event)
        elif event.op == "deliver":
            self._deliver(event)
        else:
            self._ack(event)

    def _put(self, event: HistoryEvent) -> None:
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

    def _deliver(self, event: HistoryEvent) -> None:
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

    def _ack(self, event: HistoryEvent) -> None:
        if event.phase == "ok":
            self._found.acks_confirmed += 1
        record = self._records.get(event.key)
        if record is not None:
            record.custody.note(event)

    def _same_id(self, record: _Record, event: HistoryEvent) -> None:
        if not event.message_id or event.queue in self._replicated:
            return
        if record.message_id and record.message_id != event.message_id:
            self._found.stored_twice += 1
            self._say(f"stored twice: also under id {record.message_id}", event)
        record.message_id = event.message_id

    def _check_order(self, record: _Record, event: HistoryEvent) -> None:
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

    def verdict(self, *, stored: Collection[MessageKey] | None) -> CheckResult:
        """Return the result; `stored` has the keys of all messages in the store.

        `stored` None means that the store could not be read. Call it once, after the last event.
        """
        found = self._found
        held = None if stored is None else frozenset(stored)
        highest_ids: dict[_Stream, int] = {}
        # The records of one producer are in the order of its numbers, because it assigns them in
        # the order of its puts.
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

    def _say(self, what: str, about: HistoryEvent | MessageKey) -> None:
        if len(self._found.examples) >= EXAMPLES_MAX:
            return
        if isinstance(about, HistoryEvent):
            at = (
                f"{about.t:.3f} {about.process} {about.op} {about.phase} {about.queue} "
                f"{about.producer}:{about.seq} id {about.message_id} "
                f"{'redelivered' if about.redelivered else 'first'}"
            )
        else:
            at = f"{about[0]} {about[1]}:{about[2]}"
        self._found.examples.append(f"{what}: {at}")


def check(
    events: Iterable[HistoryEvent],
    *,
    stored: Collection[MessageKey] | None,
    sole_consumer: Collection[str] = (),
    replicated: Collection[str] = (),
) -> CheckResult:
    """Check a complete history, with the events in the order of their times."""
    checker = Checker(sole_consumer=sole_consumer, replicated=replicated)
    for event in events:
        checker.feed(event)
    return checker.verdict(stored=stored)


# The waiting times that clients recorded, judged against an agreement window by window.
#
#     history → a wait from the confirmation of a put to the first delivery → agreements.evaluation
#
# Nodes measure waits themselves, and the leader judges its agreements by those. This module applies
# the same rules to the clients' records, so that an error in the nodes' meters is found. A
# confirmed message that was never delivered has no wait here; the checker counts it as lost or
# undrained.


def waits(events: Iterable[HistoryEvent], queue: str) -> list[tuple[float, float]]:
    """Return the time of the first delivery and the wait of each confirmed message of a queue."""
    confirmed: dict[MessageKey, float] = {}
    delivered: dict[MessageKey, float] = {}
    for event in events:
        if event.queue != queue or event.phase != "ok":
            continue
        if event.op == "put":
            confirmed[event.key] = event.t
        elif event.op == "deliver":
            delivered.setdefault(event.key, event.t)
    # A delivery may come before the confirmation of the put; its wait is 0.
    return sorted(
        (at_s, max(at_s - confirmed[key], 0.0))
        for key, at_s in delivered.items()
        if key in confirmed
    )


def judged_waits(
    events: Iterable[HistoryEvent], agreement: Agreement, queue: str
) -> tuple[list[WindowVerdict], float]:
    """Return the verdict of every window of an agreement, and the longest wait in seconds."""
    seen = waits(events, queue)
    samples = [AgreementSample(at_s=at_s, times={"wait": [(wait_s, 1.0)]}) for at_s, wait_s in seen]
    verdicts = [
        judge_window(agreement, begins_s, together)
        for begins_s, together in windows_of(agreement, samples)
    ]
    return verdicts, max((wait_s for _, wait_s in seen), default=0.0)


# Payloads that carry the name of their producer and the number of their put.


PAYLOAD_BYTES = 256


def numbered_payload(producer: str, seq: int) -> bytes:
    """Return the payload for one put; it is a function of the producer and the number."""
    head = f"{producer}:{seq}:".encode()
    filler = hashlib.blake2b(head, digest_size=32).hexdigest().encode()
    return (head + filler * (PAYLOAD_BYTES // len(filler) + 1))[:PAYLOAD_BYTES]


def numbered(payload: bytes) -> tuple[str, int]:
    """Return the producer and the number of a payload, or ("?", 0) for any other payload."""
    producer, _, rest = payload.partition(b":")
    seq, _, _ = rest.partition(b":")
    if not seq.isdigit():
        return ("?", 0)
    return producer.decode(errors="replace"), int(seq)
