"""Leases against a model: a dictionary from tag to deadline."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from tidegate.core.segment import Segment
from tidegate.queueing.leases import LeaseBook
from tidegate.queueing.spans import MessageState, Span

LEASE_S = 10.0

tags = st.integers(0, 40)
steps = st.one_of(
    st.tuples(st.just("grant"), st.integers(1, 6)),
    st.tuples(st.just("take"), tags, tags),
    st.tuples(st.just("extend"), st.lists(st.tuples(tags, tags), max_size=3), st.floats(0, 30)),
    st.tuples(st.just("extend_all"), st.floats(0, 30)),
    st.tuples(st.just("lapse"), st.floats(0, 15)),
    st.tuples(st.just("clear")),
)


def span_of(first_id: int, count: int) -> Span:
    segment = Segment(
        queue_id=1,
        first_id=first_id,
        priority=5,
        arrived_at=0.0,
        lengths=[1] * count,
        payload=b"x" * count,
        senders=[1],
    )
    return Span(segment, 0, count, MessageState.READY)


@settings(max_examples=examples(500), deadline=None)
@given(st.lists(steps, max_size=25))
def test_a_lease_book_knows_which_tags_are_held_and_until_when(story: list[tuple]) -> None:  # type: ignore[type-arg]
    book = LeaseBook()
    now = 0.0
    held: dict[int, float] = {}
    message_of: dict[int, int] = {}
    next_tag = 1

    for name, *arguments in story:
        if name == "grant":
            count = arguments[0]
            lease = book.grant(span_of(1000 + next_tag, count), now, LEASE_S)
            assert lease.tag == next_tag
            for tag in range(next_tag, next_tag + count):
                held[tag] = now + LEASE_S
                message_of[tag] = 1000 + tag
            next_tag += count
        elif name == "take":
            first, last = arguments
            leases = book.take(first, last)
            taken = [tag for lease in leases for tag in range(lease.tag, lease.last_tag + 1)]
            assert taken == [tag for tag in sorted(held) if first <= tag <= last]
            for lease in leases:
                assert lease.span.first_id == message_of[lease.tag]
                assert len(lease.span) == lease.last_tag - lease.tag + 1
            for tag in taken:
                del held[tag]
        elif name == "extend":
            ranges, lease_s = arguments
            touched = [tag for low, high in ranges for tag in held if low <= tag <= high]
            assert book.extend(ranges, now + lease_s) == len(touched)
            for tag in touched:
                held[tag] = now + lease_s
        elif name == "extend_all":
            assert book.extend(None, now + arguments[0]) == len(held)
            held = {tag: max(deadline, now + arguments[0]) for tag, deadline in held.items()}
        elif name == "lapse":
            now += arguments[0]
            lapsed = [
                tag for lease in book.lapsed(now) for tag in range(lease.tag, lease.last_tag + 1)
            ]
            assert sorted(lapsed) == sorted(t for t, deadline in held.items() if deadline <= now)
            held = {tag: deadline for tag, deadline in held.items() if deadline > now}
        else:
            cleared = [t for lease in book.clear() for t in range(lease.tag, lease.last_tag + 1)]
            assert cleared == sorted(held)
            held = {}
        assert book.outstanding == len(held)
        kept = [tag for lease in book for tag in range(lease.tag, lease.last_tag + 1)]
        assert kept == sorted(held)
