"""Which batches are stored: against a set, and bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.node.marks import ABOVE_MAX, ProducerMark, ProducerMarks


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
def test_what_the_store_remembers_is_known_again(batches: dict[int, set[int]]) -> None:
    ranges = {
        producer: [(batch, batch + 1) for batch in sorted(numbers)]
        for producer, numbers in batches.items()
    }
    marks = ProducerMarks(ranges)
    for producer in (1, 2, 3):
        known = {n for n in range(1, 45) if marks.has(producer, n)}
        assert known == batches.get(producer, set())


def test_silent_producers_are_forgotten() -> None:
    marks = ProducerMarks()
    marks.add(1, 1, now=10.0)
    marks.add(2, 1, now=20.0)
    marks.forget(before=15.0)
    assert not marks.has(1, 1)
    assert marks.has(2, 1)


def test_reloaded_marks_are_as_fresh_as_the_reload() -> None:
    marks = ProducerMarks({1: [(1, 5)], 2: [(7, 9)]}, now=100.0)
    marks.forget(before=99.0)
    assert marks.has(1, 4)
    assert marks.has(2, 8)
    assert not marks.has(1, 5)
