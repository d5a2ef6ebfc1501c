"""Priority with ageing, as stories; the model tells the rest."""

from __future__ import annotations

from tidegate.core.budget import Budget
from tidegate.core.model import Order
from tidegate.core.segment import Segment
from tidegate.queueing.queue import ANYONE, Queue


def queue_of(*priorities_and_arrivals: tuple[int, float], keep: bool = True) -> Queue:
    """Messages with ids from 1 on."""
    queue = Queue(Budget(1 << 40))
    for n, (priority, arrived_at) in enumerate(priorities_and_arrivals):
        queue.add(segment(n + 1, priority, arrived_at), keep=keep)
    return queue


def segment(first_id: int, priority: int, arrived_at: float) -> Segment:
    return Segment(
        queue_id=1,
        first_id=first_id,
        priority=priority,
        arrived_at=arrived_at,
        lengths=[1],
        payload=b"x",
        senders=[1],
    )


def taken(queue: Queue, ageing_s: float) -> list[int]:
    return [span.first_id for span in queue.take(100, ANYONE, Order.PRIORITY, ageing_s)]


def test_low_priority_that_has_waited_long_enough_goes_first() -> None:
    queue = queue_of((1, 0.0), (2, 59.0), (2, 61.0))

    assert taken(queue, 60.0) == [2, 1, 3]


def test_without_ageing_priority_alone_decides() -> None:
    queue = queue_of((1, 0.0), (2, 1e6))

    assert taken(queue, 0.0) == [2, 1]


def test_ageing_does_not_change_the_order_of_the_oldest_first() -> None:
    queue = queue_of((1, 0.0), (9, 1.0))

    assert [s.first_id for s in queue.take(2, ANYONE, Order.OLDEST, 60.0)] == [1, 2]


def test_what_is_in_the_store_only_is_waited_for_by_its_age() -> None:
    queue = queue_of((1, 0.0), keep=False)
    queue.add(segment(2, 2, 59.0), keep=True)
    queue.add(segment(3, 2, 61.0), keep=True)

    # The second comes before what lies in the store; the third does not.
    assert taken(queue, 60.0) == [2]
    queue.bring_back([segment(1, 1, 0.0)])

    assert taken(queue, 60.0) == [1, 3]


def test_a_new_owner_knows_how_old_the_first_in_the_store_is() -> None:
    queue = Queue(Budget(1 << 40))
    queue.tail_lane(1, False).expect_tail(1, 1, 1, 1, 0.0)
    queue.add(segment(2, 2, 61.0), keep=True)

    assert taken(queue, 60.0) == []
    queue.bring_back([segment(1, 1, 0.0)])

    assert taken(queue, 60.0) == [1, 2]
