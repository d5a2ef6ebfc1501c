"""Messages that wait for their time, and those whose time is over. Pure: the test is the clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.model import Attributes, Order
from tidegate.core.segment import Budget, Segment
from tidegate.queueing.leases import LeaseBook
from tidegate.queueing.queue import Queue
from tidegate.queueing.spans import ANYONE, MessageEvent, MessageState


def a_segment(
    first_id: int,
    count: int = 1,
    *,
    due_at: float | None = None,
    expiries: list[float | None] | None = None,
) -> Segment:
    return Segment(
        queue_id=1,
        first_id=first_id,
        priority=5,
        arrived_at=0.0,
        lengths=[1] * count,
        payload=b"x" * count,
        senders=[1],
        attributes=None if expiries is None else [Attributes(expires_at=at) for at in expiries],
        due_at=due_at,
    )


def ids_of(queue: Queue) -> list[int]:
    """Take everything; the ids in order."""
    return [
        span.first_id + n
        for span in queue.take(1 << 30, ANYONE, Order.OLDEST)
        for n in range(len(span))
    ]


def test_due_message_returns_to_its_place_by_id() -> None:
    queue = Queue(Budget(1 << 30))
    queue.add_for_later(a_segment(1, 2, due_at=10.0))
    queue.add(a_segment(3), keep=True)
    queue.add_for_later(a_segment(4, due_at=5.0))
    assert (len(queue), queue.lanes.head_count, queue.delayed.count) == (4, 1, 3)
    assert queue.release_due(9.0, 0.0) == 1
    assert queue.release_due(10.0, 0.0) == 2
    assert ids_of(queue) == [1, 2, 3, 4]


def test_retry_is_due_by_the_monotonic_clock() -> None:
    queue = Queue(Budget(1 << 30))
    queue.add(a_segment(1, 3), keep=True)
    book = LeaseBook()
    (span,) = queue.take(2, ANYONE, Order.OLDEST)
    book.grant(span, 0.0, 60.0)
    queue.put_off([lease.span for lease in book.take(1, 2)], 50.0)
    assert (queue.lanes.head_count, queue.delayed.count) == (1, 2)
    assert queue.release_due(1e12, 49.9) == 0
    assert queue.release_due(0.0, 50.0) == 2
    assert ids_of(queue) == [1, 2, 3]


def test_a_reloaded_message_waits_for_its_next_try() -> None:
    queue = Queue(Budget(1 << 30))
    segment = a_segment(1, 4)
    segment.remember(1, 2, 100.0, [])
    segment.remember(2, 1, None, [])
    queue.add(segment, keep=True)
    assert (queue.lanes.head_count, queue.delayed.count) == (3, 1)
    assert queue.release_due(100.0, 0.0) == 1
    assert ids_of(queue) == [1, 2, 3, 4]


@given(
    st.lists(
        st.lists(st.one_of(st.none(), st.integers(1, 20)), min_size=1, max_size=6),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.integers(0, 25), min_size=1, max_size=5),
    st.booleans(),
)
def test_exactly_those_leave_whose_time_is_over(
    expiries: list[list[int | None]], times: list[int], later: bool
) -> None:
    queue = Queue(Budget(1 << 30))
    expiry_of: dict[int, float | None] = {}
    next_id = 1
    for at, column in enumerate(expiries):
        floats = [None if each is None else float(each) for each in column]
        for offset, each in enumerate(floats):
            expiry_of[next_id + offset] = each
        if later and at % 2:
            queue.add_for_later(a_segment(next_id, len(column), due_at=1e9, expiries=floats))
        else:
            queue.add(a_segment(next_id, len(column), expiries=floats), keep=True)
        next_id += len(column)
    left: set[int] = set()
    for now in sorted(times):
        for span in queue.take_expired(float(now)):
            assert span.state in (MessageState.READY, MessageState.SCHEDULED)
            left |= {span.first_id + n for n in range(len(span))}
            queue.done(span, MessageEvent.EXPIRED)
        over = {i for i, at in expiry_of.items() if at is not None and at <= now}
        assert left == over
        assert len(queue) == len(expiry_of) - len(over)
        living = [at for i, at in expiry_of.items() if at is not None and i not in over]
        assert queue.expiry.next_at <= min(living, default=float("inf"))
    queue.release_due(1e9, 0.0)
    assert ids_of(queue) == sorted(set(expiry_of) - left)


def test_of_what_waits_for_long_memory_keeps_the_half_that_is_due_first() -> None:
    budget = Budget(1 << 30)
    queue = Queue(budget)
    for n in range(10):
        queue.add_for_later(a_segment(n + 1, due_at=float(100 - n)))
    used = budget.used_bytes
    horizon = queue.delayed.evict()
    assert horizon == (95.0, 6)
    assert (queue.delayed.scheduled.count, queue.delayed.in_store, len(queue)) == (5, 5, 10)
    assert budget.used_bytes == used // 2
    queue.release_due(1e9, 0.0)
    assert ids_of(queue) == [6, 7, 8, 9, 10]


def test_message_that_waits_for_a_retry_stays_in_memory() -> None:
    """Its segment was due long ago: nobody would look for it there again."""
    queue = Queue(Budget(1 << 30))
    failed = a_segment(1, due_at=5.0)
    failed.retry_at = {0: 100.0}
    queue.add_for_later(failed)
    queue.add_for_later(a_segment(2, due_at=50.0))
    assert queue.delayed.evict() == (50.0, 2)
    assert queue.delayed.in_store == 0
    assert queue.release_due(100.0, 0.0) == 2
    assert ids_of(queue) == [1, 2]


def test_message_that_was_due_is_never_evicted() -> None:
    """It is with somebody; read from the store it would be there twice."""
    queue = Queue(Budget(1 << 30))
    queue.add_for_later(a_segment(1, due_at=10.0))
    assert queue.release_due(10.0, 0.0) == 1
    assert queue.delayed.evict() == (10.0, 1)
    # Due before it, and stored after it.
    queue.add_for_later(a_segment(2, due_at=9.0))
    assert queue.delayed.evict() == (10.0, 1)
    assert queue.delayed.in_store == 0
    queue.add_for_later(a_segment(3, due_at=20.0))
    queue.add_for_later(a_segment(4, due_at=30.0))
    assert queue.delayed.evict() == (20.0, 3)
    assert (queue.delayed.in_store, queue.delayed.scheduled.count) == (1, 2)


def test_message_that_expired_before_its_time_is_never_evicted() -> None:
    queue = Queue(Budget(1 << 30))
    queue.add_for_later(a_segment(1, 2, due_at=10.0, expiries=[5.0, None]))
    queue.add_for_later(a_segment(3, due_at=8.0))
    assert [span.first_id for span in queue.take_expired(6.0)] == [1]
    assert queue.delayed.evict() == (10.0, 1)
    assert (queue.delayed.in_store, queue.delayed.scheduled.count) == (0, 2)
