"""Groups: what the model does not tell, as stories."""

from __future__ import annotations

from tidegate.core.model import Attributes, Order
from tidegate.core.segment import Budget, Segment
from tidegate.queueing.queue import MessageSelector, Queue
from tidegate.queueing.spans import MessageEvent, Span

CLIENT = 1


def new_queue() -> Queue:
    return Queue(Budget(1 << 40))


def segment(
    first_id: int,
    *groups: str | None,
    priority: int = 5,
    receiver: int | None = None,
    expires_at: float | None = None,
    arrived_at: float = 0.0,
) -> Segment:
    return Segment(
        queue_id=1,
        first_id=first_id,
        priority=priority,
        arrived_at=arrived_at,
        lengths=[1] * len(groups),
        payload=b"x" * len(groups),
        senders=[1],
        receivers=None if receiver is None else [receiver],
        attributes=[Attributes(group=group, expires_at=expires_at) for group in groups],
    )


def take(queue: Queue, count: int = 100, client: int = CLIENT) -> list[Span]:
    return [
        span.advance(MessageEvent.DELIVERED) for span in queue.take(count, client, Order.OLDEST)
    ]


def ids(spans: list[Span]) -> list[int]:
    return [span.first_id + n for span in spans for n in range(len(span))]


def test_one_message_of_each_group_is_delivered_at_a_time() -> None:
    queue = new_queue()
    queue.add(segment(1, "a", "a", "b", None, "a", "b"), keep=True)

    first = take(queue)

    assert ids(first) == [1, 3, 4]
    assert (queue.lanes.head_count, queue.lanes.held_count, len(queue)) == (0, 3, 3)
    for span in first:
        queue.done(span)
    assert ids(take(queue)) == [2, 6]


def test_a_batch_without_groups_and_tenants_stays_whole() -> None:
    queue = new_queue()
    queue.add(segment(1, *[None] * 500), keep=True)

    assert [len(span) for span in take(queue, 500)] == [500]


def test_a_batch_of_as_many_groups_stays_whole() -> None:
    queue = new_queue()
    queue.add(segment(1, *map(str, range(500))), keep=True)

    assert [len(span) for span in take(queue, 500)] == [500]


def test_a_returned_message_comes_before_those_behind_it() -> None:
    queue = new_queue()
    queue.add(segment(1, "a", "a"), keep=True)

    queue.put_back(take(queue), MessageEvent.RETURNED)

    assert ids(take(queue)) == [1]
    assert take(queue) == []


def test_a_group_waits_for_the_one_that_is_tried_again_later() -> None:
    queue = new_queue()
    queue.add(segment(1, "a", "a", "b"), keep=True)
    failed = take(queue, 1)[0]
    assert ids(take(queue)) == [3]

    queue.put_off([failed], due=10.0)

    assert take(queue) == []
    assert queue.release_due(0.0, 10.0) == 1
    assert ids(take(queue)) == [1]


def test_a_new_owner_lets_a_group_wait_for_the_one_that_is_tried_again_later() -> None:
    queue = new_queue()
    queue.spilled.lane(5, False).expect_tail(1, 3, 3, 3, 0.0)
    found = segment(1, "a", "a", "b")
    found.remember(0, 1, 10.0, [])

    queue.bring_back([found])

    assert ids(take(queue)) == [3]
    assert queue.release_due(10.0, 0.0) == 1
    assert ids(take(queue)) == [1]


def test_message_that_waits_for_its_group_can_expire() -> None:
    queue = new_queue()
    queue.add(segment(1, "a", "a"), keep=True)
    queue.add(segment(3, "a", expires_at=10.0), keep=True)
    queue.add(segment(4, "a"), keep=True)
    taken = take(queue)

    expired = queue.take_expired(11.0)

    assert ids(expired) == [3]
    for span in expired:
        queue.done(span, MessageEvent.EXPIRED)
    seen = ids(taken)
    while taken:
        for span in taken:
            queue.done(span)
        taken = take(queue)
        seen += ids(taken)
    assert seen == [1, 2, 4]


def test_a_group_goes_on_when_the_one_that_was_out_expires() -> None:
    queue = new_queue()
    queue.add(segment(1, "a", expires_at=10.0), keep=True)
    queue.add(segment(2, "a"), keep=True)

    for span in queue.take_expired(11.0):
        queue.done(span, MessageEvent.EXPIRED)

    assert queue.group_gate.freed
    assert ids(take(queue)) == [2]


def test_an_absent_receiver_does_not_hold_up_a_group_of_others() -> None:
    queue = new_queue()
    queue.add(segment(1, "a", receiver=7), keep=True)
    queue.add(segment(2, "a"), keep=True)

    assert ids(take(queue)) == [2]
    assert ids(take(queue, client=7)) == [1]


def test_order_holds_across_priorities_though_the_older_one_is_in_the_store() -> None:
    queue = new_queue()
    queue.add(segment(1, None, priority=1), keep=False)
    queue.add(segment(2, "a", priority=1), keep=False)
    queue.add(segment(3, "a", "b", priority=9), keep=True)

    assert queue.take(10, CLIENT, Order.PRIORITY) == []
    queue.bring_back([segment(1, None, priority=1), segment(2, "a", priority=1)])

    assert ids(queue.take(10, CLIENT, Order.PRIORITY)) == [4, 1, 2]


def test_a_plain_backlog_in_the_store_does_not_hold_up_groups() -> None:
    queue = new_queue()
    queue.add(segment(1, None, None, priority=1), keep=False)
    queue.add(segment(3, "a", priority=9), keep=True)

    assert ids(queue.take(10, CLIENT, Order.PRIORITY)) == [3]


def test_a_selective_read_does_not_reach_behind_the_one_that_is_out() -> None:
    queue = new_queue()
    queue.add(segment(1, "a", "a"), keep=True)
    assert ids(take(queue)) == [1]

    assert queue.take_match(MessageSelector(sender=1), CLIENT, Order.OLDEST) is None


def test_ten_thousand_groups_are_let_out_in_order() -> None:
    queue = new_queue()
    count = 10_000
    for n in range(3):
        queue.add(segment(1 + n * count, *map(str, range(count))), keep=True)

    seen: list[int] = []
    while taken := take(queue, 100):
        seen += ids(taken)
        for span in taken:
            queue.done(span)

    assert seen == list(range(1, 3 * count + 1))


def test_a_purge_leaves_groups_to_what_is_with_somebody() -> None:
    queue = new_queue()
    queue.add(segment(1, "a", "a", "b", "b"), keep=True)
    held = take(queue, 1)

    _, count = queue.purge()
    queue.add(segment(5, "a", "b"), keep=True)

    assert count == 3
    assert ids(take(queue)) == [6]
    queue.done(held[0])
    assert ids(take(queue)) == [5]


def test_the_oldest_that_waits_may_wait_for_its_group() -> None:
    queue = new_queue()
    queue.add(segment(1, "a", arrived_at=1.0), keep=True)
    queue.add(segment(2, "a", arrived_at=2.0), keep=True)
    take(queue)

    oldest = queue.contents.oldest()

    assert oldest is not None
    assert oldest.arrived_at == 2.0
    assert [span.first_id for span in queue.contents.browse(5)] == [2]


def test_search_for_a_receiver_survives_further_stored_messages() -> None:
    queue = new_queue()
    queue.add(segment(1, "a", receiver=8), keep=False)
    queue.searched(7, queue.spilled.addressed_end)
    queue.add(segment(2, "a", "a", receiver=7, priority=9), keep=True)
    queue.add(segment(4, "a", receiver=7), keep=False)

    first = take(queue, client=7)
    assert ids(first) == [2]
    queue.done(first[0])

    # Nothing of its group before it is in the store: that was found out before.
    assert ids(take(queue, client=7)) == [3]
    assert queue.spilled.unsearched_from(7) == 4


def test_a_group_goes_on_when_two_older_ones_come_late() -> None:
    """They wait for one that somebody had and gave back: it had begun, so it stays the first."""
    queue = new_queue()
    queue.add(segment(30, "a"), keep=True)
    (newest,) = take(queue)
    queue.add(segment(10, "a"), keep=True)
    queue.put_back([newest], MessageEvent.RETURNED)
    queue.add(segment(20, "a"), keep=True)

    order = []
    while out := take(queue):
        order += ids(out)
        for span in out:
            queue.done(span)
    assert order == [30, 10, 20]
    assert len(queue) == 0
