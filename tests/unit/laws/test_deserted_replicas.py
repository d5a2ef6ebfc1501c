"""What waits where nobody takes it goes to where somebody waits for it, however little it is."""

from __future__ import annotations

from tidegate.core.decisions import Exchange, ReplicaSample
from tidegate.laws.routing import exchanges


def idle(number: int) -> ReplicaSample:
    return ReplicaSample(number=number, consumers=2, waiting_consumers=2)


def test_three_messages_without_a_consumer_go_to_one_who_waits() -> None:
    moves = exchanges([ReplicaSample(number=1, waiting=3), idle(2)], 0, {}, 1.0)

    assert moves == [Exchange(source=1, target=2, count=3)]


def test_many_are_shared_by_all_who_wait() -> None:
    moves = exchanges([ReplicaSample(number=1, waiting=300), idle(2), idle(3)], 0, {}, 1.0)

    assert moves == [
        Exchange(source=1, target=2, count=150),
        Exchange(source=1, target=3, count=150),
    ]


def test_a_few_messages_stay_where_there_is_a_consumer() -> None:
    busy = ReplicaSample(number=1, waiting=3, consumers=1, consumed_per_s=10.0)

    assert exchanges([busy, idle(2)], 0, {}, 1.0) == []


def test_they_go_to_who_is_busy_rather_than_wait_for_nobody() -> None:
    full = ReplicaSample(number=2, waiting=50, consumers=1, consumed_per_s=50.0)

    moves = exchanges([ReplicaSample(number=1, waiting=3), full], 0, {}, 1.0)

    assert moves == [Exchange(source=1, target=2, count=3)]
