"""Leases: which holder has which delivered messages, and until when.

Deliveries to a holder are numbered by tags, one for each message, counting up from 1. A lease
covers a span and therefore a range of tags. Clients acknowledge, return and extend ranges of tags.
Tags that are not held any more are counted, and are no error.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter

from tidegate.queueing.spans import MessageEvent, Span

_tag = attrgetter("tag")


class Lease:
    """The lease of a span, with tags `tag` to `tag + len(span) - 1`."""

    __slots__ = ("deadline", "granted_at", "span", "tag")

    def __init__(self, tag: int, span: Span, granted_at: float, deadline: float) -> None:
        self.tag = tag
        self.span = span
        self.granted_at = granted_at
        self.deadline = deadline

    @property
    def last_tag(self) -> int:
        return self.tag + len(self.span) - 1


class LeaseBook:
    """The leases of one holder, in order of their tags."""

    __slots__ = ("_leases", "_next_tag", "held_bytes", "outstanding")

    def __init__(self) -> None:
        self._leases: list[Lease] = []
        self._next_tag = 1
        self.outstanding = 0
        # The payload bytes of all leased messages.
        self.held_bytes = 0

    def grant(self, span: Span, now: float, lease_s: float) -> Lease:
        """Lease a span until `now + lease_s`."""
        span.advance(MessageEvent.DELIVERED)
        lease = Lease(self._next_tag, span, now, now + lease_s)
        self._next_tag += len(span)
        self.outstanding += len(span)
        self.held_bytes += span.payload_bytes
        self._leases.append(lease)
        return lease

    def take(self, first: int, last: int) -> list[Lease]:
        """End and return the leases on tags `first` to `last`, split at both ends if needed."""
        leases = self._leases
        if not leases or last < first:
            return []
        at = max(bisect_right(leases, first, key=_tag) - 1, 0)
        taken: list[Lease] = []
        kept: list[Lease] = []
        end = at
        while end < len(leases) and leases[end].tag <= last:
            lease = leases[end]
            end += 1
            if lease.last_tag < first:
                kept.append(lease)
                continue
            low = max(first, lease.tag)
            high = min(last, lease.last_tag)
            if low == lease.tag and high == lease.last_tag:
                taken.append(lease)
                continue
            offset = lease.span.low - lease.tag
            before, inside, behind = lease.span.cut_out(low + offset, high + offset + 1)
            if before is not None:
                kept.append(Lease(lease.tag, before, lease.granted_at, lease.deadline))
            taken.append(Lease(low, inside, lease.granted_at, lease.deadline))
            if behind is not None:
                kept.append(Lease(high + 1, behind, lease.granted_at, lease.deadline))
        leases[at:end] = kept
        self._let_go(taken)
        return taken

    def _let_go(self, leases: list[Lease]) -> None:
        for lease in leases:
            self.outstanding -= len(lease.span)
            self.held_bytes -= lease.span.payload_bytes

    def restore(self, leases: list[Lease]) -> None:
        """Add leases again that were taken, with their old deadlines."""
        for lease in leases:
            self.outstanding += len(lease.span)
            self.held_bytes += lease.span.payload_bytes
            self._leases.insert(bisect_right(self._leases, lease.tag, key=_tag), lease)

    def extend(self, ranges: list[tuple[int, int]] | None, deadline: float) -> int:
        """Extend deadlines; return how many tags were still held. `ranges` None means all."""
        if ranges is None:
            for lease in self._leases:
                lease.deadline = max(lease.deadline, deadline)
            return self.outstanding
        held = 0
        for first, last in ranges:
            # Taken and inserted again, so that only these tags get the new deadline.
            for lease in self.take(first, last):
                held += len(lease.span)
                self.held_bytes += lease.span.payload_bytes
                lease.deadline = deadline
                self._leases.insert(bisect_right(self._leases, lease.tag, key=_tag), lease)
        self.outstanding += held
        return held

    def lapsed(self, now: float) -> list[Lease]:
        """End and return the leases whose deadline has passed."""
        late = [lease for lease in self._leases if lease.deadline <= now]
        if late:
            self._leases = [lease for lease in self._leases if lease.deadline > now]
            self._let_go(late)
        return late

    def clear(self) -> list[Lease]:
        """End and return all leases."""
        leases, self._leases, self.outstanding, self.held_bytes = self._leases, [], 0, 0
        return leases

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._leases)
