"""A segment: columns of messages, and which of them are done."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.segment import Segment


def segment_of(payloads: list[bytes], senders: list[int] | None = None) -> Segment:
    return Segment(
        queue_id=1,
        first_id=100,
        priority=5,
        arrived_at=0.0,
        lengths=list(map(len, payloads)),
        payload=b"".join(payloads),
        senders=senders or [1],
    )


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=30), st.data())
def test_a_body_is_the_payloads_of_its_messages(payloads: list[bytes], data: st.DataObject) -> None:
    segment = segment_of(payloads)
    low = data.draw(st.integers(0, len(payloads)))
    high = data.draw(st.integers(low, len(payloads)))

    assert bytes(segment.body(low, high)) == b"".join(payloads[low:high])
    assert segment.last_id == 100 + len(payloads) - 1


@given(st.integers(1, 40), st.data())
def test_open_ranges_are_what_was_not_settled(count: int, data: st.DataObject) -> None:
    segment = segment_of([b""] * count)
    left = set(range(count))
    while left and data.draw(st.booleans()):
        low = data.draw(st.sampled_from(sorted(left)))
        high = low + 1
        while high in left and data.draw(st.booleans()):
            high += 1
        left -= set(range(low, high))

        finished = segment.mark_done(low, high)

        assert finished == (not left)
        assert segment.open == len(left)
        if left:
            ranges = segment.open_ranges()
            assert {n for low, high in ranges for n in range(low, high)} == left
            assert all(a[1] < b[0] for a, b in pairwise(ranges))


def test_attempts_are_counted_per_message() -> None:
    segment = segment_of([b"a", b"b", b"c"])
    segment.mark_attempted(0, 2)
    segment.mark_attempted(1, 3)

    assert segment.attempts == {0: 1, 1: 2, 2: 1}


def test_a_column_of_one_speaks_for_all() -> None:
    assert [segment_of([b"", b""], [7]).sender(n) for n in range(2)] == [7, 7]
    assert [segment_of([b"", b""], [7, 8]).sender(n) for n in range(2)] == [7, 8]
