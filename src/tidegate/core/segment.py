"""A segment: messages of one queue and one priority that were stored by one commit.

A segment consists of columns, not of message objects. The payloads of a producer's batch stay one
piece of bytes, from the producer's socket to the store and to the consumer's socket. So the work of
a node grows with the number of batches and not of messages.

A column with one element applies to all messages. An absent column means that no message has the
property. A segment holds only messages with a receiver, or only messages without.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from tidegate.core.model import Attributes, Failure

Bytes = bytes | bytearray | memoryview

# The memory of a segment beside its payload: measured with tracemalloc, rounded up.
SEGMENT_OVERHEAD_BYTES = 900
MESSAGE_OVERHEAD_BYTES = 24
# Per message with attributes: the objects, and entries for groups and tenants.
ATTRIBUTES_OVERHEAD_BYTES = 300
# How many of the latest failures of a message are kept.
FAILURES_KEPT = 10


class Segment:
    """Columns of messages with the ids `first_id` to `first_id + count - 1`."""

    __slots__ = (
        "_offsets",
        "arrived_at",
        "attempts",
        "attributes",
        "contexts",
        "count",
        "done",
        "due_at",
        "expires_at",
        "expires_by_policy",
        "failed",
        "failures",
        "first_id",
        "lengths",
        "open",
        "payload",
        "payload_bytes",
        "priority",
        "queue_id",
        "receivers",
        "reloaded",
        "retry_at",
        "senders",
    )

    def __init__(
        self,
        *,
        queue_id: int,
        first_id: int,
        priority: int,
        arrived_at: float,
        lengths: list[int],
        payload: Bytes,
        senders: list[int],
        receivers: list[int] | None = None,
        contexts: list[int | None] | None = None,
        attributes: list[Attributes | None] | None = None,
        due_at: float | None = None,
        reloaded: bool = False,
    ) -> None:
        self.queue_id = queue_id
        self.first_id = first_id
        self.priority = priority
        self.arrived_at = arrived_at
        self.lengths = lengths
        self.payload = payload
        self.payload_bytes = len(payload)
        self.senders = senders
        self.receivers = receivers
        self.contexts = contexts
        self.attributes = attributes
        # Seconds since 1970 before which its messages must not be delivered; `None` means at once.
        self.due_at = due_at
        # Deliveries are not written to the store, so messages that were read back may have been
        # delivered before.
        self.reloaded = reloaded
        self.count = len(lengths)
        self.open = self.count
        self.done: list[tuple[int, int]] = []
        # When the first message expires by its own attributes; the queue's time to live may come
        # earlier.
        self.expires_at = _first_expiry(attributes)
        self.expires_by_policy: float | None = None
        # By offset, of messages that were delivered and came back: all deliveries, failed
        # deliveries, and the failures themselves.
        self.attempts: dict[int, int] | None = None
        self.failed: dict[int, int] | None = None
        self.failures: dict[int, list[Failure]] | None = None
        # By offset, of messages read back from the store: when they are to be delivered again.
        self.retry_at: dict[int, float] | None = None
        self._offsets: list[int] | None = None

    @property
    def last_id(self) -> int:
        return self.first_id + self.count - 1

    @property
    def cost_bytes(self) -> int:
        """The memory that the segment takes."""
        each = MESSAGE_OVERHEAD_BYTES
        if self.attributes is not None:
            each += ATTRIBUTES_OVERHEAD_BYTES
        return self.payload_bytes + SEGMENT_OVERHEAD_BYTES + each * self.count

    def body(self, low: int, high: int) -> memoryview:
        """Return the payloads of messages `low` to `high - 1` as one view."""
        view = memoryview(self.payload)
        if low == 0 and high == self.count:
            return view
        offsets = self._offsets
        if offsets is None:
            offsets = self._offsets = [0, *accumulate(self.lengths)]
        return view[offsets[low] : offsets[high]]

    def cut(self, low: int, high: int) -> Segment:
        """Return messages `low` to `high - 1` as a segment of their own, with the same ids."""
        receivers = self.receivers
        return Segment(
            queue_id=self.queue_id,
            first_id=self.first_id + low,
            priority=self.priority,
            arrived_at=self.arrived_at,
            lengths=self.lengths[low:high],
            payload=bytes(self.body(low, high)),
            senders=self.senders[low:high] if len(self.senders) > 1 else self.senders,
            receivers=receivers[low:high] if receivers and len(receivers) > 1 else receivers,
            contexts=None if self.contexts is None else self.contexts[low:high],
            attributes=None if self.attributes is None else self.attributes[low:high],
            # Any of them may have been delivered before.
            reloaded=self.reloaded or self.attempts is not None,
        )

    def sender(self, offset: int) -> int:
        return self.senders[offset] if len(self.senders) > 1 else self.senders[0]

    def context(self, offset: int) -> int | None:
        return None if self.contexts is None else self.contexts[offset]

    def mark_done(self, low: int, high: int) -> bool:
        """Settle messages `low` to `high - 1`; return whether the whole segment is settled."""
        self.open -= high - low
        if self.open == 0:
            return True
        done = self.done
        if done and done[-1][1] == low:
            done[-1] = (done[-1][0], high)
            return False
        done.append((low, high))
        if len(done) > 1 and done[-2][0] > low:
            self.done = _merged(done)
        return False

    def mark_attempted(self, low: int, high: int) -> None:
        """Note that messages were delivered and came back."""
        attempts = self.attempts
        if attempts is None:
            attempts = self.attempts = {}
        for offset in range(low, high):
            attempts[offset] = attempts.get(offset, 0) + 1

    def was_attempted(self, offset: int) -> bool:
        """Return whether a message was delivered and came back, as far as is known."""
        return self.attempts is not None and offset in self.attempts

    def expiry(self, offset: int) -> float | None:
        """Return when a message expires: by its own attributes, or else by the queue's policy."""
        attributes = None if self.attributes is None else self.attributes[offset]
        if attributes is not None and attributes.expires_at is not None:
            return attributes.expires_at
        return self.expires_by_policy

    def expire_by_policy(self, ttl_s: float | None) -> None:
        """Apply the queue's time to live to messages without one of their own."""
        self.expires_by_policy = None if ttl_s is None else self.arrived_at + ttl_s
        times = [_first_expiry(self.attributes), self.expires_by_policy]
        self.expires_at = min((at for at in times if at is not None), default=None)

    def mark_failed(self, offset: int, failure: Failure) -> int:
        """Note a failed delivery; return the number of failed deliveries so far."""
        if self.failed is None:
            self.failed = {}
        if self.failures is None:
            self.failures = {}
        count = self.failed[offset] = self.failed.get(offset, 0) + 1
        self.failures[offset] = [*self.failures.get(offset, ()), failure][-FAILURES_KEPT:]
        return count

    def remember(
        self, offset: int, failed: int, retry_at: float | None, failures: list[Failure]
    ) -> None:
        """Apply the stored failures of a message."""
        self.attempts = self.attempts or {}
        self.attempts[offset] = failed
        self.failed = self.failed or {}
        self.failed[offset] = failed
        if failures:
            self.failures = self.failures or {}
            self.failures[offset] = failures
        if retry_at is not None:
            self.retry_at = self.retry_at or {}
            self.retry_at[offset] = retry_at

    @property
    def open_end_id(self) -> int:
        """The id after the last unsettled message.

        Ids from there on may belong to segments that were cut off this one.
        """
        ranges = self.open_ranges()
        return self.first_id + (ranges[-1][1] if ranges else self.count)

    def open_ranges(self) -> list[tuple[int, int]]:
        """Return the offsets of unsettled messages as ranges [low, high)."""
        ranges, low = [], 0
        for done_low, done_high in _merged(self.done):
            if done_low > low:
                ranges.append((low, done_low))
            low = max(low, done_high)
        if low < self.count:
            ranges.append((low, self.count))
        return ranges


def _first_expiry(attributes: list[Attributes | None] | None) -> float | None:
    if attributes is None:
        return None
    times = [a.expires_at for a in attributes if a is not None and a.expires_at is not None]
    return min(times, default=None)


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and merged[-1][1] >= low:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return merged


class Budget:
    """Counters with a limit; queues update them, and the node checks them."""

    __slots__ = ("_resumes", "bound_bytes", "used_bytes", "waiting_bytes")

    def __init__(self, bound_bytes: int) -> None:
        self.bound_bytes = bound_bytes
        # Bytes of stored messages in memory.
        self.used_bytes = 0
        # Bytes of accepted messages that are not on disk yet.
        self.waiting_bytes = 0
        # Called once, as soon as the store has caught up.
        self._resumes: list[Callable[[], None]] = []

    def stop_waiting(self, size_bytes: int) -> None:
        """Note that accepted messages are on disk or refused."""
        self.waiting_bytes -= size_bytes
        if self._resumes and not self.is_flooded:
            resumes, self._resumes = self._resumes, []
            for resume in resumes:
                resume()

    def when_drained(self, resume: Callable[[], None]) -> None:
        """Call `resume` once, as soon as the store has caught up."""
        self._resumes.append(resume)

    @property
    def is_flooded(self) -> bool:
        """Whether the store cannot keep up, so that the node must stop reading from producers."""
        return self.waiting_bytes > self.bound_bytes // 8

    def has_room_for(self, wanted_bytes: int) -> bool:
        return self.used_bytes + wanted_bytes <= self.bound_bytes
