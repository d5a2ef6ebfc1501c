"""A segment that was cut up keeps its ids, and what was cut off lies among them."""

from __future__ import annotations

import pytest

from tidegate.core.model import Order
from tidegate.core.segment import Budget, Segment
from tidegate.queueing.queue import Queue


def segment(first_id: int, count: int) -> Segment:
    return Segment(
        queue_id=1,
        first_id=first_id,
        priority=5,
        arrived_at=0.0,
        lengths=[1] * count,
        payload=b"x" * count,
        senders=[1],
    )


@pytest.mark.parametrize("at_once", [True, False], ids=["one read", "a read each"])
def test_pieces_of_a_segment_return_to_memory_after_it(at_once: bool) -> None:
    kept, pieces = segment(1, 4), [segment(2, 1), segment(3, 2)]
    kept.mark_done(1, 4)
    queue = Queue(Budget(1 << 40))
    tail = queue.spilled.lane(5, False)
    tail.expect_tail(1, 4, 4, 4, 0.0)

    for some in [[kept, *pieces]] if at_once else [[kept], *([each] for each in pieces)]:
        # The store is asked for what begins there.
        assert tail.tail_from == some[0].first_id
        queue.bring_back(some)

    taken = queue.take(100, 1, Order.OLDEST)
    assert [span.first_id + n for span in taken for n in range(len(span))] == [1, 2, 3, 4]
    assert len(queue) == 0
