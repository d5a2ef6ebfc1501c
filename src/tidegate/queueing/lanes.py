"""The lanes of a queue: ready messages in memory, by receiver and priority.

Unaddressed messages are in one lane per priority. Messages for a receiver are in lanes of that
receiver, which no other client sees.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.core.id_ranges import Range
from tidegate.queueing.expiry import Expiry
from tidegate.queueing.lane import Lane
from tidegate.queueing.receiver import ANYONE
from tidegate.queueing.span import Span

NO_LANES: dict[int, Lane] = {}


class Lanes:
    """All lanes of a queue, and the number of messages in them."""

    __slots__ = ("anyones", "by_receiver", "head_count", "held_count")

    def __init__(self) -> None:
        # Receiver (or ANYONE) -> priority -> lane, with priorities from high to low.
        self.anyones: dict[int, Lane] = {}
        self.by_receiver = {ANYONE: self.anyones}
        # Messages that may be taken, and messages that wait for an earlier one of their group.
        self.head_count = 0
        self.held_count = 0

    def __iter__(self) -> Iterator[Lane]:
        for lanes in self.by_receiver.values():
            yield from lanes.values()

    def lane(self, receiver: int, priority: int) -> Lane:
        lanes = self.by_receiver.get(receiver)
        if lanes is None:
            lanes = self.by_receiver[receiver] = {}
        lane = lanes.get(priority)
        if lane is None:
            lane = lanes[priority] = Lane(priority)
            if len(lanes) > 1:
                in_order = sorted(lanes.items(), reverse=True)
                lanes.clear()
                lanes.update(in_order)
        return lane

    def seen_by(self, client_id: int) -> Iterator[Lane]:
        """Yield the lanes from which a client may have messages."""
        yield from self.anyones.values()
        if client_id != ANYONE:
            yield from self.by_receiver.get(client_id, NO_LANES).values()

    # Adding and taking

    def insert(self, receiver: int, span: Span) -> None:
        self.head_count += span.high - span.low
        self.lane(receiver, span.segment.priority).insert(span)

    def cut_out(self, lane: Lane, span: Span, low: int, high: int) -> Span:
        """Take offsets `low` to `high - 1` out of a span of `lane`."""
        self.head_count -= high - low
        return lane.remove(span, low, high)

    def take_expired(self, expiry: Expiry, now: float) -> Iterator[Span]:
        """Take expired messages, as spans of their own."""
        for lane in self:
            for span in list(lane.spans()):
                for low, high in expiry.ranges(span, now):
                    # Earlier cuts may have split the span: find the piece that holds the range.
                    piece = lane.find(Span(span.segment, low, high, span.state))
                    assert piece is not None
                    yield self.cut_out(lane, piece, low, high)

    def withdraw(self, receiver: int, span: Span) -> bool:
        """Take a span out, wherever it is; False if it is in no lane."""
        if not self.lane(receiver, span.segment.priority).withdraw(span):
            return False
        self.head_count -= span.high - span.low
        return True

    def take_between(self, ranges: list[Range]) -> list[Span]:
        """Take the unaddressed messages with these ids.

        The ranges are in order and do not touch.
        """
        taken = [span for lane in self.anyones.values() for span in lane.take_between(ranges)]
        self.head_count -= sum(map(len, taken))
        return taken

    def take_addressed(self, count: int) -> list[Span]:
        """Take up to `count` addressed messages, the oldest ones in memory."""
        addressed = [
            lane
            for receiver, lanes in self.by_receiver.items()
            if receiver != ANYONE
            for lane in lanes.values()
            if lane.count
        ]
        if not addressed:
            return []
        span = min(addressed, key=lambda lane: lane.first.first_id).take(count)
        self.head_count -= len(span)
        return [span]

    def take_all(self) -> list[Span]:
        taken: list[Span] = []
        for lane in self:
            while lane.count:
                taken.append(lane.take(lane.count))
        self.head_count -= sum(map(len, taken))
        return taken

    def hold(self, receiver: int, span: Span, count: int) -> None:
        """Count a message that waits for its group; with `count` -1, count it no longer."""
        lane = self.lane(receiver, span.segment.priority)
        self.held_count += count
        lane.held_count += count
        lane.held_bytes += count * span.payload_bytes

    # Reading

    def has_for(self, client_id: int) -> bool:
        """Return whether a message in these lanes or their tails waits for the client."""
        return any(map(len, self.seen_by(client_id)))

    def has_addressed_to(self, client_id: int) -> bool:
        """Return whether a message in memory is addressed to this client."""
        mine = self.by_receiver.get(client_id, NO_LANES)
        return any(lane.count for lane in mine.values())

    @property
    def payload_bytes(self) -> int:
        """The payload bytes of all messages in memory that are ready or wait for their group."""
        return sum(lane.head_bytes + lane.held_bytes for lane in self)
