"""Checks the batches of producers, and turns them into segments.

Batches of one queue that wait for the same commit share segments. There is one segment for each
priority, and separate ones for addressed messages and for each due time. A batch whose messages are
all of the same kind is moved as whole columns, without a loop over its messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sized
from typing import TYPE_CHECKING

import msgspec

from tidegate.core.errors import InvalidValue, RequiredParameterMissing, TidegateError, TooLarge
from tidegate.core.model import PRIORITY_HIGHEST, PRIORITY_LOWEST, Attributes
from tidegate.core.runtime import NodeLimits
from tidegate.core.segment import Segment
from tidegate.core.store import Write
from tidegate.core.topology import assignment_key, assignment_slot
from tidegate.protocol.messages import PutMessages

if TYPE_CHECKING:
    from tidegate.broker.recording import Lifecycle


SEGMENT_BYTES_MAX = 512 * 1024
SEGMENT_COUNT_MAX = 4096

# Messages of one segment have these in common: priority, whether they are addressed, and due time.
Kind = tuple[int, bool, float | None]


# Checks of a batch, made before anything is done, so that a refusal changes nothing.


BATCH_COUNT_MAX = 100_000
KEY_LENGTH_MAX = 255
# The longest wait or lease: 24 days.
DELAY_S_MAX = 2**31 / 1e3
# The last second of the year 9999; the store's calendar ends there.
WALL_S_MAX = 253_402_300_000
INT8_MAX = 2**63 - 1
INT4_MAX = 2**31 - 1


def check_put(packet: PutMessages, body_bytes: int, limits: NodeLimits) -> None:
    """Check that the columns of a batch fit each other and its body."""
    lengths = packet.lengths
    count = len(lengths)
    if not count:
        raise RequiredParameterMissing("a batch needs at least one message")
    if count > BATCH_COUNT_MAX:
        raise TooLarge(f"a batch has at most {BATCH_COUNT_MAX} messages, not {count}")
    if min(lengths) < 0 or sum(lengths) != body_bytes:
        raise InvalidValue(f"lengths add up to {sum(lengths)}, the body has {body_bytes} bytes")
    check_payload(max(lengths), limits)
    if packet.batch < 1:
        raise InvalidValue("batches of a producer count up from 1")
    _check_column(packet.priorities, count, may_be_one=True)
    check_priority(min(packet.priorities), max(packet.priorities))
    check_integers((packet.producer, packet.batch), INT8_MAX)
    if packet.receivers is not None:
        _check_column(packet.receivers, count, may_be_one=True)
        check_receivers(packet.receivers)
    if packet.contexts is not None:
        _check_column(packet.contexts, count)
        check_integers(packet.contexts, INT8_MAX)
    if packet.attributes is not None:
        _check_column(packet.attributes, count)
        for attributes in packet.attributes:
            check_attributes(attributes, limits)
    for column, least in ((packet.delays_s, 0.0), (packet.ttls_s, 0.0)):
        if column is not None:
            _check_column(column, count)
            for seconds in column:
                if seconds is not None and not least <= seconds <= DELAY_S_MAX:
                    raise InvalidValue(
                        f"delays and times to live run from {least:g} to {DELAY_S_MAX:.0f} "
                        f"seconds, not {seconds}"
                    )


def _check_column(column: Sized, count: int, *, may_be_one: bool = False) -> None:
    if len(column) != count and not (may_be_one and len(column) == 1):
        raise InvalidValue(f"a column has {len(column)} entries for {count} messages")


def check_integers(values: Iterable[int | None], largest: int) -> None:
    """Raise `InvalidValue` for integers that the store's columns cannot hold."""
    for number in values:
        if number is not None and not -largest - 1 <= number <= largest:
            raise InvalidValue(f"{number} is too large: at most {largest}")


def check_receivers(receivers: Iterable[int | None]) -> None:
    for receiver in receivers:
        if receiver is not None and not 0 < receiver <= INT4_MAX:
            raise InvalidValue(f"a receiver is a client's id, not {receiver}")


def check_payload(payload_bytes: int, limits: NodeLimits) -> None:
    if payload_bytes > limits.message_bytes_max:
        raise TooLarge(
            f"a message of {payload_bytes} bytes exceeds the limit of {limits.message_bytes_max}"
        )


def check_priority(lowest: int, highest: int) -> None:
    if lowest < PRIORITY_LOWEST or highest > PRIORITY_HIGHEST:
        raise InvalidValue(
            f"priority runs from {PRIORITY_LOWEST} (lowest) to {PRIORITY_HIGHEST}, not "
            f"{lowest if lowest < PRIORITY_LOWEST else highest}"
        )


def check_attributes(attributes: Attributes | None, limits: NodeLimits) -> None:
    if attributes is None:
        return
    headers = attributes.headers or {}
    texts = [attributes.content_type or "", *headers, *headers.values()]
    if len(headers) > limits.header_count_max or sum(map(len, texts)) > limits.header_bytes_max:
        raise TooLarge(
            f"headers are limited to {limits.header_count_max} and {limits.header_bytes_max} "
            "characters in all"
        )
    keys = [attributes.group, attributes.tenant, attributes.dedup_id]
    if any("\x00" in text for text in (*texts, *filter(None, keys))):
        raise InvalidValue("headers, content types and keys cannot hold NUL characters")
    for key in keys:
        if key is not None and not 0 < len(key) <= KEY_LENGTH_MAX:
            raise InvalidValue(
                f"group, tenant and dedup id have from 1 to {KEY_LENGTH_MAX} characters"
            )
    for at in (attributes.deliver_at, attributes.expires_at):
        if at is not None and not 0 <= at <= WALL_S_MAX:
            raise InvalidValue(f"times are in seconds since 1970, not {at}")
    if attributes.deaths is not None:
        raise InvalidValue("deaths are written by nodes only")


# A batch, and the segments that are made of batches.


class Batch:
    """The messages of one put, until its result is known."""

    __slots__ = (
        "_confirmed",
        "arrived_at",
        "body",
        "dues",
        "is_stored",
        "open",
        "packet",
        "parsed_at",
        "parts",
        "refused",
        "sender",
        "skipped",
        "stored_at",
        "watched",
    )

    def __init__(
        self,
        packet: PutMessages,
        body: bytes | memoryview,
        sender: int,
        confirmed: Callable[[int, list[int] | None, float], None],
        refused: Callable[[TidegateError], None],
        arrived_at: float = 0.0,
        parsed_at: float = 0.0,
    ) -> None:
        self.packet = packet
        self.body = body
        self.sender = sender
        # When the packet arrived, by the monotonic clock.
        self.arrived_at = arrived_at
        self.parsed_at = parsed_at
        self.stored_at = 0.0
        self._confirmed = confirmed
        self.refused = refused
        # Number of segments that are not on disk yet.
        self.open = 0
        # Where its messages went: segment, offset there, and indices in the batch (None: all).
        self.parts: list[tuple[SegmentBuilder, int, list[int] | None]] = []
        # Due time of each message; None: all are due at once.
        self.dues: list[float | None] | None = None
        # Indices of messages that are left out, since their dedup ids are stored.
        self.skipped: frozenset[int] = frozenset()
        # Whether all messages are left out.
        self.is_stored = False
        # Of its messages, those whose lifecycle is recorded.
        self.watched: list[Lifecycle] | None = None

    def stamp(self, now: float) -> None:
        """Turn delays and times to live into times, counted from `now`."""
        packet = self.packet
        count = len(packet.lengths)
        if packet.delays_s is not None or packet.ttls_s is not None:
            delays_s = packet.delays_s or [None] * count
            ttls_s = packet.ttls_s or [None] * count
            packet.attributes = [
                _timed(attributes, delay_s, ttl_s, now)
                for attributes, delay_s, ttl_s in zip(
                    packet.attributes or [None] * count, delays_s, ttls_s, strict=True
                )
            ]
        dues = [
            # Rounded to milliseconds, so that messages of one commit that are due together share a
            # segment.
            None
            if attributes is None or (attributes.deliver_at or 0.0) <= now
            else math.ceil((attributes.deliver_at or 0.0) * 1e3) / 1e3
            for attributes in packet.attributes or ()
        ]
        if any(due is not None for due in dues):
            self.dues = dues

    def dedup_ids(self) -> list[str]:
        """Return the dedup ids of messages that are not left out."""
        return [
            attributes.dedup_id
            for index, attributes in enumerate(self.packet.attributes or ())
            if attributes is not None
            and attributes.dedup_id is not None
            and index not in self.skipped
        ]

    def home_keys(self) -> set[str | int]:
        """Return the receivers, groups and dedup ids that decide on the assignment slots."""
        packet = self.packet
        if packet.receivers is None and packet.attributes is None:
            return set()
        count = len(packet.lengths)
        receivers = packet.receivers or [None]
        keys = set()
        for receiver, attributes in zip(
            receivers if len(receivers) == count else receivers * count,
            packet.attributes or [None] * count,
            strict=True,
        ):
            group = None if attributes is None else attributes.group
            dedup_id = None if attributes is None else attributes.dedup_id
            key = assignment_key(receiver, group, dedup_id)
            if key is not None:
                keys.add(key)
        return keys

    @property
    def has_order_or_dedup_id(self) -> bool:
        """Return whether a message has a group or a dedup id."""
        return any(
            each is not None and (each.group or each.dedup_id)
            for each in self.packet.attributes or ()
        )

    def skip(self, indices: set[int]) -> None:
        """Leave out the messages with these indices."""
        self.skipped = frozenset(indices)
        self.is_stored = len(indices) == len(self.packet.lengths)

    def part_stored(self) -> bool:
        """Count one more segment as stored; return True if it was the last."""
        self.open -= 1
        return self.open == 0

    def confirm(self) -> None:
        first_builder, offset, indices = self.parts[0]
        if indices is None:
            self._confirmed(first_builder.first_id + offset, None, self.stored_at)
            return
        ids = [0] * len(self.packet.lengths)
        for builder, at, chosen in self.parts:
            for position, index in enumerate(chosen or ()):
                ids[index] = builder.first_id + at + position
        self._confirmed(ids[0], ids, self.stored_at)

    def confirm_duplicate(self) -> None:
        self._confirmed(0, None, self.stored_at)


class SegmentBuilder:
    """A segment while batches are added to it."""

    __slots__ = (
        "addressed",
        "attributes",
        "batches",
        "bodies",
        "body_bytes",
        "contexts",
        "due_at",
        "first_id",
        "lengths",
        "priority",
        "receivers",
        "senders",
    )

    def __init__(self, priority: int, addressed: bool, due_at: float | None) -> None:
        self.priority = priority
        self.addressed = addressed
        self.due_at = due_at
        self.lengths: list[int] = []
        self.bodies: list[bytes | memoryview] = []
        self.body_bytes = 0
        self.senders: list[tuple[int, int]] = []
        self.receivers: list[int] = []
        self.contexts: list[int | None] | None = None
        self.attributes: list[Attributes | None] | None = None
        self.batches: list[Batch] = []
        self.first_id = 0

    def has_room_for(self, count: int, body_bytes: int) -> bool:
        return not self.lengths or (
            len(self.lengths) + count <= SEGMENT_COUNT_MAX
            and self.body_bytes + body_bytes <= SEGMENT_BYTES_MAX
        )

    def add(
        self,
        batch: Batch,
        lengths: list[int],
        body: bytes | memoryview,
        receivers: list[int] | None,
        contexts: list[int | None] | None,
        attributes: list[Attributes | None] | None,
        indices: list[int] | None,
    ) -> None:
        before = len(self.lengths)
        count = len(lengths)
        batch.parts.append((self, before, indices))
        if not self.batches or self.batches[-1] is not batch:
            self.batches.append(batch)
            batch.open += 1
        self.lengths = lengths if not before else self.lengths + lengths
        self.bodies.append(body)
        self.body_bytes += len(body)
        self.senders.append((batch.sender, count))
        if receivers is not None:
            self.receivers += receivers if len(receivers) == count else receivers * count
        self.contexts = _joined(self.contexts, before, contexts, count)
        self.attributes = _joined(self.attributes, before, attributes, count)

    def build(self, queue_id: int, first_id: int, arrived_at: float) -> Segment:
        self.first_id = first_id
        first_sender = self.senders[0][0]
        if all(sender == first_sender for sender, _ in self.senders):
            senders = [first_sender]
        else:
            senders = [sender for sender, count in self.senders for _ in range(count)]
        return Segment(
            queue_id=queue_id,
            first_id=first_id,
            priority=self.priority,
            arrived_at=arrived_at,
            lengths=self.lengths,
            payload=self.bodies[0] if len(self.bodies) == 1 else b"".join(self.bodies),
            senders=senders,
            receivers=self.receivers if self.addressed else None,
            contexts=self.contexts,
            attributes=self.attributes,
            due_at=self.due_at,
        )

    def release(self) -> list[Batch]:
        """Return the batches of the segment and drop the references to them and their bytes.

        Called when the result is known. Batch and builder refer to each other: without this the
        bytes would stay in memory until the garbage collector runs.
        """
        batches, self.batches = self.batches, []
        self.bodies = []
        return batches

    def write(self, segment: Segment, epoch: int) -> Write:
        return Write(
            segment,
            epoch,
            [batch.packet.producer for batch in self.batches],
            [batch.packet.batch for batch in self.batches],
            [a.dedup_id for a in self.attributes or () if a is not None and a.dedup_id] or None,
        )


def _timed(
    attributes: Attributes | None, delay_s: float | None, ttl_s: float | None, now: float
) -> Attributes | None:
    """Return the attributes with times in place of the delay and the time to live."""
    if not delay_s and ttl_s is None:
        return attributes
    attributes = attributes or Attributes()
    if delay_s:
        attributes = msgspec.structs.replace(attributes, deliver_at=now + delay_s)
    if ttl_s is not None:
        attributes = msgspec.structs.replace(attributes, expires_at=now + ttl_s)
    return attributes


Column = list[int | None] | list[Attributes | None]


def _joined(column, before: int, added, count: int):  # type: ignore[no-untyped-def]
    """Concatenate two columns, either of which may be absent."""
    if column is None and added is None:
        return None
    left = [None] * before if column is None else column
    right = [None] * count if added is None else added
    return left + right


def build_segments(batches: list[Batch]) -> list[SegmentBuilder]:
    """Distribute batches over as few segments as order, priority and size limits allow."""
    open_builders: dict[Kind, SegmentBuilder] = {}
    builders: list[SegmentBuilder] = []

    def builder_for(kind: Kind, count: int, body_bytes: int) -> SegmentBuilder:
        builder = open_builders.get(kind)
        if builder is None or not builder.has_room_for(count, body_bytes):
            builder = open_builders[kind] = SegmentBuilder(*kind)
            builders.append(builder)
        return builder

    for batch in batches:
        packet = batch.packet
        receivers = packet.receivers
        if (
            len(packet.priorities) == 1
            and (receivers is None or None not in receivers)
            and batch.dues is None
            and not batch.skipped
        ):
            kind = (packet.priorities[0], receivers is not None, None)
            builder = builder_for(kind, len(packet.lengths), len(batch.body))
            builder.add(
                batch,
                packet.lengths,
                batch.body,
                receivers,  # type: ignore[arg-type]
                packet.contexts,
                packet.attributes,
                None,
            )
        else:
            _split(batch, builder_for)
    return builders


def _split(batch: Batch, builder_for: Callable[[Kind, int, int], SegmentBuilder]) -> None:
    """Add a batch whose messages differ in kind, one kind after the other."""
    packet = batch.packet
    count = len(packet.lengths)
    priorities = packet.priorities if len(packet.priorities) == count else packet.priorities * count
    receivers = packet.receivers or [None]
    receivers = receivers if len(receivers) == count else receivers * count
    offsets = [0]
    for length in packet.lengths:
        offsets.append(offsets[-1] + length)
    dues = batch.dues or [None] * count
    groups: dict[Kind, list[int]] = {}
    for index in range(count):
        if index not in batch.skipped:
            kind = (priorities[index], receivers[index] is not None, dues[index])
            groups.setdefault(kind, []).append(index)
    body = memoryview(batch.body)
    for kind, indices in groups.items():
        lengths = [packet.lengths[i] for i in indices]
        builder = builder_for(kind, len(indices), sum(lengths))
        builder.add(
            batch,
            lengths,
            b"".join(body[offsets[i] : offsets[i + 1]] for i in indices),
            [receivers[i] for i in indices] if kind[1] else None,  # type: ignore[misc]
            None if packet.contexts is None else [packet.contexts[i] for i in indices],
            None if packet.attributes is None else [packet.attributes[i] for i in indices],
            indices,
        )


# The assignment slots of the messages in a segment.


def segment_assignments(segment: Segment) -> set[int]:
    """Return the slots of the open messages; empty for messages that may be at any replica."""
    if segment.receivers is None and segment.attributes is None:
        return set()
    keys = {
        _key(segment, offset) for low, high in segment.open_ranges() for offset in range(low, high)
    }
    return {assignment_slot(key) for key in keys if key is not None}


def _key(segment: Segment, offset: int) -> str | int | None:
    receivers, attributes = segment.receivers, segment.attributes
    receiver = None
    if receivers is not None:
        receiver = receivers[offset] if len(receivers) > 1 else receivers[0]
    mine = None if attributes is None else attributes[offset]
    if mine is None:
        return receiver
    return assignment_key(receiver, mine.group, mine.dedup_id)


def split_by_assignment(segment: Segment) -> list[tuple[int, int]]:
    """Return offsets [low, high) of runs of open messages with the same slot, in order."""
    runs: list[tuple[int, int]] = []
    for low, high in segment.open_ranges():
        begin = low
        home = _assignment(segment, low)
        for offset in range(low + 1, high):
            if _assignment(segment, offset) != home:
                runs.append((begin, offset))
                begin, home = offset, _assignment(segment, offset)
        runs.append((begin, high))
    return runs


def _assignment(segment: Segment, offset: int) -> int | None:
    key = _key(segment, offset)
    return None if key is None else assignment_slot(key)
