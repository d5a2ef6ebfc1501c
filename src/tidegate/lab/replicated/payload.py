"""A payload of 1 KiB: 4 bytes producer, 4 bytes sequence number, filler, CRC-32."""

from __future__ import annotations

import random
import struct
import zlib

PAYLOAD_BYTES = 1024
_HEAD = struct.Struct("<II")
_CRC = struct.Struct("<I")
_FILLER = random.Random(7411).randbytes(PAYLOAD_BYTES - _HEAD.size - _CRC.size)


class PayloadWrong(AssertionError):
    """A message was damaged."""


def make_payload(producer: int, sequence: int) -> bytes:
    body = _HEAD.pack(producer, sequence) + _FILLER
    return body + _CRC.pack(zlib.crc32(body))


def identity_of(payload: bytes) -> int:
    """Return producer and sequence number as one number.

    Raise `PayloadDamaged` if the length or the CRC is wrong.
    """
    if len(payload) != PAYLOAD_BYTES or _CRC.unpack(payload[-4:])[0] != zlib.crc32(payload[:-4]):
        raise PayloadWrong(f"a message of {len(payload)} bytes came damaged")
    producer, sequence = _HEAD.unpack_from(payload)
    return int(producer) << 32 | int(sequence)
