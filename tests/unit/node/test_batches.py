"""Batches become segments and lose nothing on the way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.broker.batch import SEGMENT_BYTES_MAX, SEGMENT_COUNT_MAX, Batch, build_segments
from tidegate.core.model import Attributes
from tidegate.core.segment import Segment
from tidegate.protocol.messages import PutMessages

Confirmed = dict[int, tuple[int, list[int] | None]]

messages = st.tuples(
    st.binary(max_size=8),
    st.sampled_from([1, 5, 9]),
    st.sampled_from([None, None, 4, 5]),
    st.sampled_from([None, 7]),
    st.sampled_from([None, Attributes("a/b"), Attributes(None, {"k": "v"})]),
)
batches = st.lists(st.lists(messages, min_size=1, max_size=6), min_size=1, max_size=6)


def batch_of(number: int, rows: list[tuple], confirmed: Confirmed) -> Batch:  # type: ignore[type-arg]
    payloads, priorities, receivers, contexts, attributes = map(list, zip(*rows, strict=True))
    packet = PutMessages(
        1,
        100 + number,
        number,
        list(map(len, payloads)),
        priorities[:1] if len(set(priorities)) == 1 else priorities,
        receivers[:1] if len(set(receivers)) == 1 and receivers[0] is not None else receivers,
        contexts,
        attributes,
    )
    if all(receiver is None for receiver in receivers):
        packet.receivers = None
    if all(context is None for context in contexts):
        packet.contexts = None
    if all(attribute is None for attribute in attributes):
        packet.attributes = None
    return Batch(
        packet,
        b"".join(payloads),
        sender=10 + number % 2,
        confirmed=lambda first_id, ids, _: confirmed.__setitem__(number, (first_id, ids)),
        refused=lambda error: None,
    )


def rows_of(segment: Segment) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for offset in range(segment.count):
        receivers = segment.receivers
        rows.append(
            (
                bytes(segment.body(offset, offset + 1)),
                segment.priority,
                None if receivers is None else receivers[offset],
                segment.context(offset),
                None if segment.attributes is None else segment.attributes[offset],
                segment.sender(offset),
            )
        )
    return rows


@given(batches)
def test_every_message_is_in_one_segment_under_the_id_that_is_confirmed(
    stories: list[list[tuple]],  # type: ignore[type-arg]
) -> None:
    confirmed: Confirmed = {}
    made = [batch_of(n + 1, rows, confirmed) for n, rows in enumerate(stories)]

    by_id: dict[int, tuple[object, ...]] = {}
    next_id = 1000
    builders = build_segments(made)
    for builder in builders:
        segment = builder.build(1, next_id, 0.0)
        write = builder.write(segment, 3)
        assert write.epoch == 3
        assert len(write.producers) == len(write.batches) == len(set(write.batches))
        assert (segment.receivers is None) == (not builder.addressed)
        for offset, row in enumerate(rows_of(segment)):
            by_id[next_id + offset] = row
        next_id += segment.count
    for builder in builders:
        for batch in builder.batches:
            if batch.part_stored():
                batch.confirm()

    assert len(by_id) == sum(map(len, stories))
    for number, rows in enumerate(stories, start=1):
        first_id, ids = confirmed[number]
        ids = ids or list(range(first_id, first_id + len(rows)))
        for row, message_id in zip(rows, ids, strict=True):
            assert by_id[message_id] == (*row, 10 + number % 2)
        # Within a priority the order of a producer holds.
        for priority in (1, 5, 9):
            same = [i for row, i in zip(rows, ids, strict=True) if row[1] == priority]
            plain = [i for i in same if by_id[i][2] is None]
            assert plain == sorted(plain)


def test_equal_batches_share_a_segment_until_it_is_full() -> None:
    confirmed: Confirmed = {}
    small = [batch_of(n, [(b"x", 5, None, None, None)] * 100, confirmed) for n in range(1, 101)]
    builders = build_segments(small)
    counts = [len(builder.lengths) for builder in builders]
    assert sum(counts) == 10_000
    assert max(counts) <= SEGMENT_COUNT_MAX
    assert len(counts) == 3

    heavy = [batch_of(n, [(b"x" * 200_000, 5, None, None, None)], confirmed) for n in range(1, 7)]
    assert all(b.body_bytes <= SEGMENT_BYTES_MAX for b in build_segments(heavy))
    huge = batch_of(1, [(b"x" * (2 * SEGMENT_BYTES_MAX), 5, None, None, None)], confirmed)
    assert len(build_segments([huge])) == 1


def test_a_duplicate_is_confirmed_without_an_id() -> None:
    confirmed: Confirmed = {}
    batch_of(1, [(b"x", 5, None, None, None)], confirmed).confirm_duplicate()
    assert confirmed == {1: (0, None)}
