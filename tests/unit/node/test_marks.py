"""Which batches are stored: against a set, and bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.broker.deduplication import (
    ABOVE_MAX,
    ANY_ORDER_MAX,
    AnyOrderMark,
    ProducerMark,
    ProducerMarks,
)


@given(st.lists(st.integers(1, 60), max_size=80))
def test_a_mark_knows_exactly_what_was_added(batches: list[int]) -> None:
    mark = ProducerMark()
    for batch in batches:
        mark.add(batch)
    assert [n for n in range(1, 70) if n in mark] == sorted(set(batches))


@given(st.permutations(range(1, 30)))
def test_batches_in_any_order_end_as_one_number(batches: list[int]) -> None:
    mark = ProducerMark()
    for batch in batches:
        mark.add(batch)
    assert mark.floor == 29
    assert not mark.above


def test_gaps_do_not_grow_without_bound() -> None:
    mark = ProducerMark()
    for batch in range(2, 100_000, 2):
        mark.add(batch)
        assert len(mark.above) <= ABOVE_MAX
    assert all(batch in mark for batch in range(99_998, 99_998 - ABOVE_MAX, -2))


@given(st.dictionaries(st.integers(1, 3), st.sets(st.integers(1, 40)), max_size=3))
def test_producer_marks_are_restored_from_the_store(batches: dict[int, set[int]]) -> None:
    ranges = {
        producer: [(batch, batch + 1) for batch in sorted(numbers)]
        for producer, numbers in batches.items()
    }
    marks = ProducerMarks(ranges)
    for producer in (1, 2, 3):
        known = {n for n in range(1, 45) if marks.has(producer, n)}
        assert known == batches.get(producer, set())


def test_of_dead_letters_in_any_order_nothing_is_assumed() -> None:
    marks = ProducerMarks()
    for number in range(2000, 3030):
        marks.add(-7, number, now=0.0)
    assert all(marks.has(-7, number) for number in range(2000, 3030))
    assert not marks.has(-7, 10)
    assert not marks.has(-7, 1999)


def test_of_stored_dead_letters_with_gaps_nothing_is_assumed() -> None:
    stored = [(number, number + 1) for number in range(2000, 4200, 2)]
    marks = ProducerMarks({-7: stored})
    assert all(marks.has(-7, number) for number in range(2000, 4200, 2))
    assert not any(marks.has(-7, number) for number in (1, 10, 2001, 4199))
    # Not even of those from the first on: what is not there has not been copied.
    marks = ProducerMarks({-7: [(1, 4), (6, 7)]})
    assert [number for number in range(1, 9) if marks.has(-7, number)] == [1, 2, 3, 6]


def test_dead_letters_are_remembered_within_a_bound() -> None:
    mark = AnyOrderMark()
    for number in range(ANY_ORDER_MAX + 10):
        mark.add(number)
        mark.add(0)
        assert len(mark) <= ANY_ORDER_MAX
    assert 0 in mark
    assert 10 not in mark
    assert all(number in mark for number in range(11, ANY_ORDER_MAX + 10))
    # A million that the store has, too, and those that came last among them.
    loaded = AnyOrderMark()
    loaded.load([(5, 6), (10, 1_000_000), (2_000_000, 2_000_010)])
    assert len(loaded) == ANY_ORDER_MAX
    assert 2_000_009 in loaded
    assert 999_999 in loaded
    assert 10 not in loaded


def test_silent_producers_are_forgotten() -> None:
    marks = ProducerMarks()
    marks.add(1, 1, now=10.0)
    marks.add(2, 1, now=20.0)
    marks.expire(before=15.0)
    assert not marks.has(1, 1)
    assert marks.has(2, 1)


def test_reloaded_marks_are_as_fresh_as_the_reload() -> None:
    marks = ProducerMarks({1: [(1, 5)], 2: [(7, 9)]}, now=100.0)
    marks.expire(before=99.0)
    assert marks.has(1, 4)
    assert marks.has(2, 8)
    assert not marks.has(1, 5)
