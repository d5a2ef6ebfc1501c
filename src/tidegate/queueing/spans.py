"""A span: adjacent messages of one segment in the same state; and the states of a message.

The states are a table, of which the diagram in the docs is made.

Spans are the unit in which a queue works. Ten thousand fresh messages are a handful of spans; only
messages that are returned one by one are handled one by one.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from itertools import islice

from tidegate.core.errors import InternalError
from tidegate.core.model import IdRange
from tidegate.core.segment import Segment


class MessageState(enum.Enum):
    """The state of a message."""

    ACCEPTED = "accepted"  # In memory, not yet on disk: no client may see it
    READY = "ready"
    SCHEDULED = "scheduled"  # Waits for its time
    LEASED = "leased"
    LEAVING = "leaving"  # On its way to another queue: no client may get it here
    DONE = "done"


class MessageEvent(enum.Enum):
    """What changes the state of a message."""

    STORED = "stored"
    STORED_FOR_LATER = "stored for later"
    DUE = "due"
    DELIVERED = "delivered"
    ACKED = "acked"
    RETURNED = "returned"
    LEASE_EXPIRED = "lease expired"
    CONSUMER_GONE = "consumer gone"
    PUT_OFF = "put off"
    GIVEN_UP = "given up"
    MOVED = "moved"
    STAYED = "stayed"
    EXPIRED = "expired"
    PURGED = "purged"


TRANSITIONS: dict[MessageState, dict[MessageEvent, MessageState]] = {
    MessageState.ACCEPTED: {
        MessageEvent.STORED: MessageState.READY,
        MessageEvent.STORED_FOR_LATER: MessageState.SCHEDULED,
    },
    MessageState.READY: {
        MessageEvent.DELIVERED: MessageState.LEASED,
        # Acknowledged by its id, by a client that has read it without a lease.
        MessageEvent.ACKED: MessageState.DONE,
        MessageEvent.PURGED: MessageState.DONE,
        MessageEvent.EXPIRED: MessageState.DONE,
        MessageEvent.GIVEN_UP: MessageState.LEAVING,
    },
    MessageState.SCHEDULED: {
        MessageEvent.DUE: MessageState.READY,
        MessageEvent.PURGED: MessageState.DONE,
        MessageEvent.EXPIRED: MessageState.DONE,
        MessageEvent.GIVEN_UP: MessageState.LEAVING,
    },
    MessageState.LEASED: {
        MessageEvent.ACKED: MessageState.DONE,
        MessageEvent.RETURNED: MessageState.READY,
        MessageEvent.LEASE_EXPIRED: MessageState.READY,
        MessageEvent.CONSUMER_GONE: MessageState.READY,
        MessageEvent.PUT_OFF: MessageState.SCHEDULED,
        MessageEvent.GIVEN_UP: MessageState.LEAVING,
    },
    MessageState.LEAVING: {
        MessageEvent.MOVED: MessageState.DONE,
        MessageEvent.STAYED: MessageState.READY,
    },
    MessageState.DONE: {},
}


def next_state(state: MessageState, event: MessageEvent) -> MessageState:
    """Return the state that follows; any other event is a bug and raises `InternalError`."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise InternalError(f"a message that is {state.value} cannot be {event.value}") from None


def state_diagram() -> str:
    """Return the table as a Mermaid state diagram, for the docs."""
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> accepted: put"]
    for state, moves in TRANSITIONS.items():
        lines += [f"    {state.value} --> {to.value}: {event.value}" for event, to in moves.items()]
    return "\n".join([*lines, "    done --> [*]", "```"])


class Span:
    """Messages `low` to `high - 1` of a segment."""

    __slots__ = ("high", "low", "segment", "state")

    def __init__(self, segment: Segment, low: int, high: int, state: MessageState) -> None:
        self.segment = segment
        self.low = low
        self.high = high
        self.state = state

    def __len__(self) -> int:
        return self.high - self.low

    def __repr__(self) -> str:
        return f"Span({self.first_id}+{len(self)}, {self.state.value})"

    @property
    def first_id(self) -> int:
        return self.segment.first_id + self.low

    @property
    def payload_bytes(self) -> int:
        return len(self.segment.body(self.low, self.high))

    def advance(self, event: MessageEvent) -> Span:
        self.state = next_state(self.state, event)
        return self

    def split(self, count: int) -> Span:
        """Cut off and return the first `count` messages; this span keeps the rest."""
        front = Span(self.segment, self.low, self.low + count, self.state)
        self.low += count
        return front

    def offsets_between(self, first_id: int, last_id: int) -> tuple[int, int]:
        """Return the offsets [low, high) of the span's messages with these ids."""
        starts = self.segment.first_id
        return max(self.low, first_id - starts), min(self.high, last_id + 1 - starts)

    def cut_out(self, low: int, high: int) -> tuple[Span | None, Span, Span | None]:
        """Return the parts before, at and after the offsets `low` to `high - 1`; None if empty."""
        before = Span(self.segment, self.low, low, self.state) if low > self.low else None
        behind = Span(self.segment, high, self.high, self.state) if high < self.high else None
        return before, Span(self.segment, low, high, self.state), behind

    def parted(self, now: float) -> list[tuple[Span, bool]]:
        """Return the span in pieces, each with whether its messages have expired."""
        segment = self.segment
        if segment.expires_at is None or segment.expires_at > now:
            return [(self, False)]
        pieces: list[tuple[Span, bool]] = []
        for offset in range(self.low, self.high):
            expires_at = segment.expiry(offset)
            is_over = expires_at is not None and expires_at <= now
            if pieces and pieces[-1][1] is is_over:
                pieces[-1][0].high = offset + 1
            else:
                pieces.append((Span(segment, offset, offset + 1, self.state), is_over))
        return pieces


# A row: spans in order of their ids. Returned messages go back to their place.


Row = deque[Span]


def span_first_id(span: Span) -> int:
    """Return the first id of a span, the key by which rows are sorted."""
    return span.segment.first_id + span.low


def insert_span(row: Row, span: Span) -> None:
    """Put a span into its place, and merge it with adjacent spans of the same segment."""
    first_id = span.first_id
    # Returned messages are older than almost all others; those of a group are newer than most.
    if not row or row[-1].first_id < first_id:
        at = len(row)
    elif first_id < row[0].first_id:
        at = 0
    else:
        at = bisect_right(row, first_id, key=span_first_id)
    if at < len(row):
        behind = row[at]
        if behind.segment is span.segment and behind.low == span.high:
            behind.low = span.low
            span = behind
        else:
            row.insert(at, span)
    else:
        row.append(span)
    if at > 0:
        before = row[at - 1]
        if before.segment is span.segment and before.high == span.low:
            before.high = span.high
            del row[at]


def find_span(row: Row, message_id: int) -> Span | None:
    """Return the span that holds a message; None if there is none."""
    at = bisect_right(row, message_id, key=span_first_id) - 1
    if at < 0 or message_id >= row[at].first_id + len(row[at]):
        return None
    return row[at]


def spans_between(row: Row, first_id: int, last_id: int) -> Iterator[Span]:
    """Yield the spans that hold ids of a range, in order."""
    start = max(bisect_right(row, first_id, key=span_first_id) - 1, 0)
    for span in islice(row, start, None):
        if span.first_id > last_id:
            return
        if span.first_id + len(span) > first_id:
            yield span


def cut_out_range(row: Row, span: Span, low: int, high: int) -> Span:
    """Take offsets `low` to `high - 1` out of a span of the row."""
    before, taken, behind = span.cut_out(low, high)
    at = bisect_right(row, span.first_id, key=span_first_id) - 1
    del row[at]
    for piece in (behind, before):
        if piece is not None:
            row.insert(at, piece)
    return taken


def take_ranges(row: Row, ranges: list[IdRange]) -> list[Span]:
    """Take the messages with these ids; the ranges are in order and do not touch.

    Examines only the spans between the first and the last range, each once.
    """
    if not row:
        return []
    start = max(bisect_right(row, ranges[0][0], key=span_first_id) - 1, 0)
    behind = len(row) - start
    row.rotate(-start)
    kept: list[Span] = []
    taken: list[Span] = []
    at = 0
    while behind and at < len(ranges):
        span = row[0]
        first_id, last_id = ranges[at]
        if last_id < span.first_id:
            at += 1
            continue
        row.popleft()
        behind -= 1
        low, high = span.offsets_between(first_id, last_id)
        if low >= high:
            kept.append(span)
            continue
        before, inside, rest = span.cut_out(low, high)
        taken.append(inside)
        if before is not None:
            kept.append(before)
        if rest is not None:
            row.appendleft(rest)
            behind += 1
    row.extendleft(reversed(kept))
    row.rotate(start)
    return taken


# A rank: the position of a message in an order, by priority (highest first) and then id.
#
# The priority is 0 in an order that ignores it.


Rank = tuple[int, int]

# Before all ranks, and after all ranks.
BEFORE_ALL: Rank = (-(1 << 62), 0)
AFTER_ALL: Rank = (1 << 62, 0)


# The receiver of a message, or any client.


# The receiver of an unaddressed message.
ANYONE = 0


def receiver_of(segment: Segment, offset: int) -> int:
    receivers = segment.receivers
    if receivers is None:
        return ANYONE
    return receivers[offset] if len(receivers) > 1 else receivers[0]


def split_by_receiver(span: Span) -> Iterator[tuple[int, Span]]:
    """Split a span into pieces with one receiver each."""
    receivers = span.segment.receivers
    if receivers is None:
        yield ANYONE, span
        return
    if len(receivers) == 1:
        yield receivers[0], span
        return
    low = span.low
    for offset in range(span.low + 1, span.high + 1):
        if offset == span.high or receivers[offset] != receivers[low]:
            yield receivers[low], Span(span.segment, low, offset, span.state)
            low = offset
