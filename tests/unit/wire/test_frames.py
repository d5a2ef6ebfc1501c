"""The frame reader against whatever bytes may come: random, cut, lying, one at a time."""

from __future__ import annotations

import contextlib
import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import Malformed, TooLarge
from tidegate.protocol.connection import HEADER, HEADER_BYTES, Frame, FrameReader, frame_pieces

LIMIT = 4096

frames = st.tuples(
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**32 - 1),
    st.binary(max_size=200),
    st.lists(st.binary(max_size=100), max_size=3),
)


def chunks_of(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    return [stream[low:high] for low, high in itertools.pairwise(edges)]


def read_all(reader: FrameReader, chunks: list[bytes]) -> list[Frame]:
    found = []
    for chunk in chunks:
        found += reader.receive(chunk)
        assert reader.held_bytes <= LIMIT + len(chunk)
    return found


@given(st.lists(frames, max_size=6), st.lists(st.integers(0, 10**6), max_size=20))
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    sent: list[tuple[int, int, bytes, list[bytes]]], cuts: list[int]
) -> None:
    stream = b"".join(
        bytes(piece)
        for method, packet_id, meta, bodies in sent
        for piece in frame_pieces(method, packet_id, meta, list(bodies))
    )
    reader = FrameReader(LIMIT)

    received = read_all(reader, chunks_of(stream, cuts))

    assert [(f.method, f.packet_id, bytes(f.meta), bytes(f.body)) for f in received] == [
        (method, packet_id, meta, b"".join(bodies)) for method, packet_id, meta, bodies in sent
    ]
    assert reader.held_bytes == 0


@given(st.lists(frames, min_size=1, max_size=3))
def test_a_byte_at_a_time_is_the_same(sent: list[tuple[int, int, bytes, list[bytes]]]) -> None:
    stream = b"".join(
        bytes(piece)
        for method, packet_id, meta, bodies in sent
        for piece in frame_pieces(method, packet_id, meta, list(bodies))
    )
    reader = FrameReader(LIMIT)

    received = read_all(reader, [bytes([byte]) for byte in stream])

    assert [frame.packet_id for frame in received] == [packet_id for _, packet_id, _, _ in sent]


@given(st.binary(max_size=2000), st.lists(st.integers(0, 10**6), max_size=20))
def test_random_bytes_raise_malformed_or_too_large_and_nothing_else(
    stream: bytes, cuts: list[int]
) -> None:
    reader = FrameReader(LIMIT)
    with contextlib.suppress(Malformed, TooLarge):
        read_all(reader, chunks_of(stream, cuts))
    assert reader.held_bytes <= LIMIT + len(stream)


@given(
    length=st.one_of(
        st.integers(0, HEADER_BYTES - 1),
        st.integers(LIMIT + 1, 2**32 - 1),
        st.sampled_from([0, 2**31, 2**32 - 1]),
    ),
    meta_bytes=st.integers(0, 2**32 - 1),
    rest=st.binary(max_size=300),
)
def test_a_length_that_lies_is_refused_before_anything_is_kept(
    length: int, meta_bytes: int, rest: bytes
) -> None:
    reader = FrameReader(LIMIT)
    with pytest.raises((Malformed, TooLarge)):
        reader.receive(HEADER.pack(length, 1, 1, meta_bytes) + rest)
    assert reader.held_bytes == 0


@given(
    length=st.integers(HEADER_BYTES, LIMIT),
    over=st.integers(1, 2**31),
    rest=st.binary(max_size=300),
)
def test_metadata_longer_than_its_frame_is_malformed(length: int, over: int, rest: bytes) -> None:
    reader = FrameReader(LIMIT)
    meta_bytes = min(length - HEADER_BYTES + over, 2**32 - 1)
    with pytest.raises(Malformed):
        reader.receive(HEADER.pack(length, 1, 1, meta_bytes) + rest)


def test_an_unfinished_frame_holds_no_more_than_the_limit() -> None:
    reader = FrameReader(LIMIT)
    reader.receive(HEADER.pack(LIMIT, 1, 1, 0))

    for _ in range(LIMIT - HEADER_BYTES - 1):
        assert reader.receive(b"x") == []
    assert reader.held_bytes == LIMIT - 1
    assert len(reader.receive(b"x")) == 1
    assert reader.held_bytes == 0


def test_a_half_frame_does_not_keep_the_chunk_it_came_in() -> None:
    reader = FrameReader(1 << 20)
    whole = b"".join(bytes(p) for p in frame_pieces(1, 1, b"m" * 1000))
    reader.receive(whole * 500 + whole[:20])
    assert reader.held_bytes == 20
    assert sum(map(len, reader._chunks)) == 20


def test_the_length_counts_itself_as_in_telesto() -> None:
    (piece,) = frame_pieces(0x01, 7, b"")
    assert struct.unpack("!I", piece[:4]) == (len(piece),)
