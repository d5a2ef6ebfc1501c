"""A message of 1 KiB that says who put it: 4 bytes producer, 4 bytes sequence, filler, CRC-32."""

from __future__ import annotations

import random
import struct
import zlib

PAYLOAD_BYTES = 1024
_HEAD = struct.Struct("<II")
_CRC = struct.Struct("<I")
_FILLER = random.Random(7411).randbytes(PAYLOAD_BYTES - _HEAD.size - _CRC.size)


class PayloadWrong(AssertionError):
    """A message came damaged."""


def make_payload(producer: int, sequence: int) -> bytes:
    body = _HEAD.pack(producer, sequence) + _FILLER
    return body + _CRC.pack(zlib.crc32(body))


def identity_of(payload: bytes) -> int:
    """Producer and sequence as one number; PayloadWrong when it is not as it was put."""
    if len(payload) != PAYLOAD_BYTES or _CRC.unpack(payload[-4:])[0] != zlib.crc32(payload[:-4]):
        raise PayloadWrong(f"a message of {len(payload)} bytes came damaged")
    producer, sequence = _HEAD.unpack_from(payload)
    return int(producer) << 32 | int(sequence)
