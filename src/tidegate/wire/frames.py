"""Frames: the layout of packets in a stream of bytes.

    length     u32   of the whole frame, including these four bytes (as in Telesto)
    method     u16   the kind of packet
    packet_id  u32   chosen by the sender of a request and repeated in the answer
    meta_bytes u32   the length of the metadata
    metadata         MessagePack, one array per packet
    body             the payloads of the messages, unchanged, one after the other

All integers are big-endian. The length is checked against the limit before a frame is stored.
"""

from __future__ import annotations

import struct
from collections import deque

from tidegate.core.errors import Malformed, TooLarge

HEADER = struct.Struct("!IHII")
HEADER_BYTES = HEADER.size
_LENGTH = struct.Struct("!I")

Bytes = bytes | bytearray | memoryview


class Frame:
    """One frame, separated from the stream and not yet decoded."""

    __slots__ = ("body", "meta", "method", "packet_id")

    def __init__(self, method: int, packet_id: int, meta: Bytes, body: Bytes) -> None:
        self.method = method
        self.packet_id = packet_id
        self.meta = meta
        self.body = body


def frame_pieces(
    method: int, packet_id: int, meta: bytes, bodies: list[memoryview | bytes] | None = None
) -> list[memoryview | bytes]:
    """Return a frame as pieces for `writelines`, so that payloads are not copied."""
    body_bytes = sum(map(len, bodies)) if bodies else 0
    head = HEADER.pack(HEADER_BYTES + len(meta) + body_bytes, method, packet_id, len(meta))
    if not bodies:
        return [head + meta]
    return [head + meta, *bodies]


class FrameReader:
    """Separates frames from a stream; holds at most one frame of the allowed size and a chunk."""

    __slots__ = ("_chunks", "_held_bytes", "_wanted_bytes", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._chunks: deque[bytes | memoryview] = deque()
        self._held_bytes = 0
        self._wanted_bytes = HEADER_BYTES

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def receive(self, chunk: bytes) -> list[Frame]:
        """Return the frames that this chunk completes."""
        if self._held_bytes:
            self._chunks.append(chunk)
            self._held_bytes += len(chunk)
            if self._held_bytes < self._wanted_bytes:
                return []
            chunk = b"".join(self._chunks)
            self._chunks.clear()
            self._held_bytes = 0
        return self._cut(chunk)

    def _cut(self, data: bytes) -> list[Frame]:
        frames: list[Frame] = []
        view = memoryview(data)
        position, end = 0, len(data)
        self._wanted_bytes = HEADER_BYTES
        while end - position >= HEADER_BYTES:
            length, method, packet_id, meta_bytes = HEADER.unpack_from(data, position)
            if length > self.frame_bytes_max:
                raise TooLarge(
                    f"a frame of {length} bytes exceeds the limit of {self.frame_bytes_max}"
                )
            if length < HEADER_BYTES or meta_bytes > length - HEADER_BYTES:
                raise Malformed(f"a frame that claims {length} bytes with {meta_bytes} of metadata")
            if end - position < length:
                self._wanted_bytes = length
                break
            body_at = position + HEADER_BYTES + meta_bytes
            frames.append(
                Frame(
                    method,
                    packet_id,
                    view[position + HEADER_BYTES : body_at],
                    view[body_at : position + length],
                )
            )
            position += length
        if position < end:
            # Copy the rest, so that half a frame does not keep the whole chunk in memory.
            self._chunks.append(bytes(view[position:]) if position else data)
            self._held_bytes = end - position
        return frames
