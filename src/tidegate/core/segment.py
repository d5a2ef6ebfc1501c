"""A segment: messages of one queue and one priority that were stored by one commit.

Strategy: columns, not objects. A batch that a producer sent stays one piece of
bytes from its socket to the store and on to a consumer's socket, so the work of a
node grows with the number of batches. Only the ends of the system see messages.

A column with one element speaks for all messages; an absent column says that none
has the property. Segments hold either addressed messages only, or none.
"""

from __future__ import annotations

from itertools import accumulate

from tidegate.core.model import Attributes, Failure

Bytes = bytes | bytearray | memoryview

# What a segment costs in memory beside its payload: measured with tracemalloc, rounded up.
SEGMENT_OVERHEAD_BYTES = 900
MESSAGE_OVERHEAD_BYTES = 24
# Of messages with attributes: the objects, and that groups and tenants have messages one by one.
ATTRIBUTES_OVERHEAD_BYTES = 300
# Of the failures of a message, the last ones are remembered.
FAILURES_KEPT = 10


class Segment:
    """Columns of messages, with ids `first_id` to `first_id + count - 1`."""

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
        # Seconds since 1970 before which its messages are nobody's.
        self.due_at = due_at
        # Deliveries are not written to disk: whatever comes back from the store
        # may have been delivered before.
        self.reloaded = reloaded
        self.count = len(lengths)
        self.open = self.count
        self.done: list[tuple[int, int]] = []
        # When its first message expires, by what the messages say; a queue may add its own.
        self.expires_at = _first_expiry(attributes)
        self.expires_by_policy: float | None = None
        # Of messages that were delivered and came back: how often in all, how often because they
        # had failed, and what went wrong.
        self.attempts: dict[int, int] | None = None
        self.failed: dict[int, int] | None = None
        self.failures: dict[int, list[Failure]] | None = None
        # Of reloaded ones that are to be tried again later: when.
        self.retry_at: dict[int, float] | None = None
        self._offsets: list[int] | None = None

    @property
    def last_id(self) -> int:
        return self.first_id + self.count - 1

    @property
    def cost_bytes(self) -> int:
        """What keeping the segment in memory costs."""
        each = MESSAGE_OVERHEAD_BYTES
        if self.attributes is not None:
            each += ATTRIBUTES_OVERHEAD_BYTES
        return self.payload_bytes + SEGMENT_OVERHEAD_BYTES + each * self.count

    def body(self, low: int, high: int) -> memoryview:
        """The payloads of messages `low` to `high - 1`, one after the other."""
        view = memoryview(self.payload)
        if low == 0 and high == self.count:
            return view
        offsets = self._offsets
        if offsets is None:
            offsets = self._offsets = [0, *accumulate(self.lengths)]
        return view[offsets[low] : offsets[high]]

    def cut(self, low: int, high: int) -> Segment:
        """Messages `low` to `high - 1` as a segment of their own, under the ids that they have."""
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
            # Whoever has had one of them may have had these.
            reloaded=self.reloaded or self.attempts is not None,
        )

    def sender(self, offset: int) -> int:
        return self.senders[offset] if len(self.senders) > 1 else self.senders[0]

    def context(self, offset: int) -> int | None:
        return None if self.contexts is None else self.contexts[offset]

    def mark_done(self, low: int, high: int) -> bool:
        """Settle messages `low` to `high - 1`; True when the whole segment is done."""
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
        """Messages that were delivered and have come back."""
        attempts = self.attempts
        if attempts is None:
            attempts = self.attempts = {}
        for offset in range(low, high):
            attempts[offset] = attempts.get(offset, 0) + 1

    def was_attempted(self, offset: int) -> bool:
        """Whether a message was delivered and came back, as far as is known."""
        return self.attempts is not None and offset in self.attempts

    def expiry(self, offset: int) -> float | None:
        """When a message expires by what it says, else when its queue lets it."""
        attributes = None if self.attributes is None else self.attributes[offset]
        if attributes is not None and attributes.expires_at is not None:
            return attributes.expires_at
        return self.expires_by_policy

    def expire_by_policy(self, ttl_s: float | None) -> None:
        """The queue's own time to live, for messages that say nothing."""
        self.expires_by_policy = None if ttl_s is None else self.arrived_at + ttl_s
        times = [_first_expiry(self.attributes), self.expires_by_policy]
        self.expires_at = min((at for at in times if at is not None), default=None)

    def mark_failed(self, offset: int, failure: Failure) -> int:
        """A delivery came to nothing; how many did so far."""
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
        """What the store knows of a message that was delivered and came back."""
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
        """One more than the id of its last open message.

        From there on segments of their own may lie that were cut off it, though its ids go on.
        """
        ranges = self.open_ranges()
        return self.first_id + (ranges[-1][1] if ranges else self.count)

    def open_ranges(self) -> list[tuple[int, int]]:
        """What is not done yet."""
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
