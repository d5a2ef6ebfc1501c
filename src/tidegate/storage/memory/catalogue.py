"""A queue of the in-memory store: its owner and everything stored in it."""

from __future__ import annotations

from tidegate.core.errors import UniqueConstraint
from tidegate.core.model import QueueInfo
from tidegate.core.ports import Attempt
from tidegate.core.segment import Segment

Ranges = list[tuple[int, int]]
# Of a producer that puts to several queues and so leaves gaps in each, only this many of the last
# batches are kept.
_GAPS_MAX = 2048
# Of a producer below 0, whose batches come in any order, this many runs are kept. A forgotten batch
# counts as not stored.
_RUNS_MAX = 4096


class Marks:
    """Batches of a producer whose segments are deleted; existing segments have their own."""

    def __init__(self) -> None:
        self.batches: Ranges = []
        self.seen_at = 0.0


class StoredQueue:
    """A queue: its owner, and everything stored in it."""

    def __init__(self, info: QueueInfo) -> None:
        self.info = info
        self.owner: int | None = None
        self.epoch = 0
        self.next_id = 1
        self.segments: dict[int, Segment] = {}
        # First id -> producer and number of each batch that the segment contains.
        self.batches: dict[int, list[tuple[int, int]]] = {}
        self.acks: dict[int, Ranges] = {}
        # First id -> offset -> the failed deliveries of the message.
        self.attempts: dict[int, dict[int, Attempt]] = {}
        # Dedup id -> when it was stored.
        self.dedup: dict[str, float] = {}
        self.marks: dict[int, Marks] = {}

    def insert(self, segment: Segment, batches: list[tuple[int, int]]) -> None:
        if segment.first_id in self.segments:
            raise UniqueConstraint(f"segment {segment.first_id} of {self.info.name!r} is stored")
        self.segments[segment.first_id] = copy_of(segment)
        self.batches[segment.first_id] = batches

    def drop(self, first_id: int, now: float) -> None:
        """Delete a segment and record its batches."""
        self.acks.pop(first_id, None)
        self.attempts.pop(first_id, None)
        if self.segments.pop(first_id, None) is not None:
            self.mark(first_id, now)

    def drop_done(self, now: float) -> None:
        """Delete segments whose messages are all done."""
        for first_id in list(self.acks):
            segment = self.segments.get(first_id)
            if segment is not None and self.read(segment).open <= 0:
                self.drop(first_id, now)

    def mark(self, first_id: int, now: float) -> None:
        """Record the batches of a segment that is no longer here."""
        for producer, batch in self.batches.pop(first_id):
            marks = self.marks.setdefault(producer, Marks())
            marks.batches = union(marks.batches, [(batch, batch + 1)])
            marks.seen_at = now

    def give(self, first_id: int, target: StoredQueue, new_first_id: int, now: float) -> None:
        """Move a segment to another queue; its batches stay recorded here."""
        segment = copy_of(self.segments.pop(first_id))
        segment.queue_id, segment.first_id = target.info.queue_id, new_first_id
        segment.due_at = None
        target.insert(segment, [])
        if first_id in self.acks:
            target.acks[new_first_id] = self.acks.pop(first_id)
        if first_id in self.attempts:
            target.attempts[new_first_id] = self.attempts.pop(first_id)
        self.mark(first_id, now)

    def forget_marks(self, before: float) -> int:
        """Delete the records of producers that were silent since `before`; return how many."""
        for producer, marks in self.marks.items():
            if producer < 0:
                marks.batches = marks.batches[-_RUNS_MAX:]
            elif len(marks.batches) > _GAPS_MAX:
                oldest = marks.batches[-1][1] - _GAPS_MAX
                marks.batches = [(max(a, oldest), b) for a, b in marks.batches if b > oldest]
        kept = {p: marks for p, marks in self.marks.items() if marks.seen_at >= before}
        forgotten = len(self.marks) - len(kept)
        self.marks = kept
        return forgotten

    def all_marks(self) -> dict[int, Ranges]:
        found = {producer: list(marks.batches) for producer, marks in self.marks.items()}
        for living in self.batches.values():
            for producer, batch in living:
                found[producer] = union(found.get(producer, []), [(batch, batch + 1)])
        return found

    def in_order(self) -> list[Segment]:
        return [self.segments[first_id] for first_id in sorted(self.segments)]

    def read(self, segment: Segment) -> Segment:
        """Return a segment as read from the store: a new object with its acknowledgements."""
        copy = copy_of(segment, reloaded=True)
        for low, high in self.acks.get(segment.first_id, ()):
            copy.mark_done(low, high)
        for offset, attempt in self.attempts.get(segment.first_id, {}).items():
            copy.remember(offset, attempt.failed, attempt.due_at, attempt.failures)
        return copy


def copy_of(segment: Segment, *, reloaded: bool = False) -> Segment:
    """Return a copy: changes that a node makes to its own object must not affect the store."""
    return Segment(
        queue_id=segment.queue_id,
        first_id=segment.first_id,
        priority=segment.priority,
        arrived_at=segment.arrived_at,
        lengths=segment.lengths,
        payload=bytes(segment.payload),
        senders=segment.senders,
        receivers=segment.receivers,
        contexts=segment.contexts,
        attributes=segment.attributes,
        due_at=segment.due_at,
        reloaded=reloaded,
    )


def union(ranges: Ranges, added: Ranges) -> Ranges:
    """Return the union of ranges [low, high), in order and merged, like a multirange."""
    if len(added) == 1 and ranges and ranges[-1][1] == added[0][0]:
        return [*ranges[:-1], (ranges[-1][0], added[0][1])]
    joined: Ranges = []
    for low, high in sorted([*ranges, *added]):
        if joined and joined[-1][1] >= low:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return joined
