"""Priority with ageing, as stories; the model tells the rest."""

from __future__ import annotations

from tidegate.core.model import Order
from tidegate.core.segment import Budget, Segment
from tidegate.queueing.queue import Queue
from tidegate.queueing.spans import ANYONE


def queue_of(*priorities_and_arrivals: tuple[int, float], keep: bool = True) -> Queue:
    """Messages with ids from 1 on."""
    queue = Queue(Budget(1 << 40))
    for n, (priority, arrived_at) in enumerate(priorities_and_arrivals):
        queue.add(segment(n + 1, priority, arrived_at), keep=keep)
    return queue


def segment(
    first_id: int, priority: int, arrived_at: float, *, receiver: int | None = None
) -> Segment:
    return Segment(
        queue_id=1,
        first_id=first_id,
        priority=priority,
        arrived_at=arrived_at,
        lengths=[1],
        payload=b"x",
        senders=[1],
        receivers=None if receiver is None else [receiver],
    )


def taken(queue: Queue, ageing_s: float, client: int = ANYONE) -> list[int]:
    return [span.first_id for span in queue.take(100, client, Order.PRIORITY, ageing_s)]


def test_low_priority_that_has_waited_long_enough_goes_first() -> None:
    queue = queue_of((1, 0.0), (2, 59.0), (2, 61.0))

    assert taken(queue, 60.0) == [2, 1, 3]


def test_without_ageing_priority_alone_decides() -> None:
    queue = queue_of((1, 0.0), (2, 1e6))

    assert taken(queue, 0.0) == [2, 1]


def test_ageing_does_not_change_the_order_of_the_oldest_first() -> None:
    queue = queue_of((1, 0.0), (9, 1.0))

    assert [s.first_id for s in queue.take(2, ANYONE, Order.OLDEST, 60.0)] == [1, 2]


def test_stored_message_keeps_its_place_by_age() -> None:
    queue = queue_of((1, 0.0), keep=False)
    queue.add(segment(2, 2, 59.0), keep=True)
    queue.add(segment(3, 2, 61.0), keep=True)

    # The second comes before what lies in the store; the third does not.
    assert taken(queue, 60.0) == [2]
    queue.bring_back([segment(1, 1, 0.0)])

    assert taken(queue, 60.0) == [1, 3]


def test_a_new_owner_knows_how_old_the_first_in_the_store_is() -> None:
    queue = Queue(Budget(1 << 40))
    queue.spilled.lane(1, False).expect_tail(1, 1, 1, 1, 0.0)
    queue.add(segment(2, 2, 61.0), keep=True)

    assert taken(queue, 60.0) == []
    queue.bring_back([segment(1, 1, 0.0)])

    assert taken(queue, 60.0) == [1, 2]


def take_oldest(queue: Queue, count: int) -> list[int]:
    return [span.first_id for span in queue.take(count, ANYONE, Order.OLDEST)]


def test_late_stored_message_does_not_set_the_age_of_later_ones() -> None:
    queue = queue_of((1, 0.0), keep=False)
    queue.add(segment(3, 1, 8.0), keep=False)
    assert queue.add(segment(2, 1, 50.0), keep=False), "late: it is in memory"
    queue.bring_back([segment(1, 1, 0.0), segment(2, 1, 50.0)])
    assert take_oldest(queue, 2) == [1, 2]

    queue.add(segment(4, 2, 30.0), keep=True)

    # The third came at 8, and only the store holds it.
    assert taken(queue, 10.0) == []
    queue.bring_back([segment(3, 1, 8.0)])
    assert taken(queue, 10.0) == [3, 4]


def test_a_new_owner_does_not_know_that_ids_are_in_order_of_arrival() -> None:
    queue = Queue(Budget(1 << 40))
    queue.spilled.lane(1, False).expect_tail(1, 2, 2, 2, 0.0)
    queue.bring_back([segment(1, 1, 25.0)])
    assert take_oldest(queue, 1) == [1]

    queue.add(segment(3, 2, 30.0), keep=True)

    assert taken(queue, 10.0) == []
    queue.bring_back([segment(2, 1, 0.0)])
    assert taken(queue, 10.0) == [2, 3]


def test_a_clock_that_is_set_back_does_not_let_the_store_be_overtaken() -> None:
    queue = queue_of((1, 100.0), (1, 120.0), (1, 20.0), keep=False)
    queue.bring_back([segment(1, 1, 100.0), segment(2, 1, 120.0)])
    assert take_oldest(queue, 2) == [1, 2]

    queue.add(segment(4, 2, 50.0), keep=True)

    assert taken(queue, 10.0) == []
    queue.bring_back([segment(3, 1, 20.0)])
    assert taken(queue, 10.0) == [3, 4]


def test_tail_in_order_is_as_old_as_the_last_message_read() -> None:
    queue = queue_of((1, 0.0), (1, 80.0), (1, 90.0), keep=False)
    queue.bring_back([segment(1, 1, 0.0), segment(2, 1, 80.0)])
    assert take_oldest(queue, 2) == [1, 2]

    queue.add(segment(4, 2, 85.0), keep=True)

    # It need not wait for the store: the third came at 80 or later.
    assert taken(queue, 10.0) == [4]


def test_ids_decide_between_what_a_receiver_has_in_memory_and_in_the_store() -> None:
    receiver = 7
    queue = Queue(Budget(1 << 40))
    queue.add(segment(1, 5, 10.0, receiver=receiver), keep=False)
    queue.add(segment(3, 5, 10.0, receiver=receiver), keep=False)
    assert queue.add(segment(2, 5, 0.0, receiver=receiver), keep=False), "late: it is in memory"

    assert taken(queue, 1.0, receiver) == []
    queue.bring_back([segment(1, 5, 10.0, receiver=receiver)])
    assert taken(queue, 1.0, receiver) == [1, 2]
