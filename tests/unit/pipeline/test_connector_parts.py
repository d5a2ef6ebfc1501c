"""The parts of the connector that need no Spark: ranges, offsets, pace, and who counts what."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import InvalidValue
from tidegate.core.model import contains_id, merge_ranges
from tidegate.pipeline import connector_read as r
from tidegate.pipeline import connector_write
from tidegate.pipeline.connector_read import Offset, WriteRateLimiter
from tidegate.pipeline.connector_write import (
    OutgoingMessage,
    RowIdentities,
    TaskCommit,
    TaskTotals,
    still_to_put,
)


@given(st.sets(st.integers(1, 60)), st.sets(st.integers(1, 60)))
def test_ranges_are_sets_of_ids(ids: set[int], taken: set[int]) -> None:
    ranges = merge_ranges((each, each) for each in ids)
    assert r.parse_ranges(r.format_ranges(ranges)) == ranges
    assert r.count_ids(ranges) == len(ids)
    assert r.ranges_overlap(ranges, merge_ranges((each, each) for each in taken)) is bool(
        ids & taken
    )
    assert {each for each in range(1, 61) if contains_id(ranges, each)} == ids
    left = r.subtract_ranges(ranges, sorted(taken))
    assert {each for first, last in left for each in range(first, last + 1)} == ids - taken
    assert all(first <= last for first, last in left)


def test_an_offset_of_another_queue_is_refused() -> None:
    stored = Offset(7, {"0": [(1, 500), (502, 502)]}).to_json()
    assert stored == {"queue_id": 7, "batch": {"0": "1-500,502"}}
    assert Offset.from_json(stored, "orders", 7).batch == {"0": [(1, 500), (502, 502)]}
    with pytest.raises(InvalidValue, match="deleted and made anew"):
        Offset.from_json(stored, "orders", 8)
    with pytest.raises(InvalidValue, match="not made by a stream from a queue"):
        Offset.from_json({"partition": 3}, "orders", 7)


def test_a_pace_is_kept_on_average() -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    pace = WriteRateLimiter(100.0, lambda: now, sleep)
    sent = 0
    while now < 20.0:
        allowed = pace.allowance(1000)
        assert allowed >= 1
        pace.spend(allowed)
        sent += allowed
    assert 1900 <= sent <= 2100
    now += 1000.0  # idle: not all of it is saved up
    assert pace.allowance(10**9) == 1000
    assert WriteRateLimiter(None).allowance(10**9) == 10**9


def parted(rows: list[str], parts: list[int]) -> list[list[str]]:
    tasks: list[list[str]] = [[], [], []]
    for row, part in zip(rows, parts, strict=False):
        tasks[part].append(row)
    return tasks


def ids_of(tasks: list[list[str]]) -> tuple[set[str], list[TaskCommit]]:
    """What tasks put, and what they report."""
    stored: set[str] = set()
    written = []
    for rows in tasks:
        identities = RowIdentities("query-3")
        noted = TaskTotals(identities, "query-3")
        for row in rows:
            put = OutgoingMessage(row.encode(), {})
            noted.add(put)
            stored.add(identities.dedup_id(put))
        written.append(noted.written())
    return stored, written


@given(
    st.lists(st.sampled_from("abc"), max_size=12),
    st.lists(st.integers(0, 2), min_size=12, max_size=12),
    st.permutations(range(12)),
    st.lists(st.integers(0, 2), min_size=12, max_size=12),
)
def test_however_rows_are_parted_the_same_ids_come_out(
    rows: list[str], parts: list[int], order: list[int], parts_again: list[int]
) -> None:
    stored, written = ids_of(parted(rows, parts))
    stored |= {dedup_id for dedup_id, _ in still_to_put(written)}
    assert len(stored) == len(rows)

    shuffled = [rows[index] for index in order if index < len(rows)]
    again, written = ids_of(parted(shuffled, parts_again))
    rest = list(still_to_put(written))
    assert again | {dedup_id for dedup_id, _ in rest} == stored
    assert not Counter(put.payload.decode() for _, put in rest) - Counter(rows)


def test_too_many_equal_rows_are_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connector_write, "CONTENT_BYTES_MAX", 10)
    _, written = ids_of([["a", "b"], ["c"]])
    assert list(still_to_put(written)) == []
    _, written = ids_of([["a", "b"], ["b"]])
    with pytest.raises(InvalidValue, match=r'1 messages are equal .* "query-3"'):
        list(still_to_put(written))


def test_contents_differ_in_all_that_is_sent_and_not_in_the_order_of_headers() -> None:
    identities = RowIdentities("w")
    put = OutgoingMessage(b"x", {"headers": {"a": "1", "b": "2"}})
    assert identities.digest(put) == identities.digest(
        OutgoingMessage(b"x", {"headers": {"b": "2", "a": "1"}})
    )
    for other in (
        OutgoingMessage(b"y", put.options),
        OutgoingMessage(b"x", {}),
        OutgoingMessage(b"x", {**put.options, "priority": 9}),
    ):
        assert identities.digest(other) != identities.digest(put)
    assert RowIdentities("v").digest(put) != identities.digest(put)
