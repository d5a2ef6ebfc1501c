"""Payloads of benchmark messages, with a checksum that the consumer verifies.

    8 bytes   sequence number
    8 bytes   send time in nanoseconds of the monotonic clock, which all processes share
    filler    differs from message to message
    4 bytes   CRC-32 of all bytes before it, little-endian

With the checksum at the end, the CRC-32 of a whole intact payload is a constant. The consumer
therefore verifies it with one call and no slice. A byte per sequence number detects duplicates. The
cost is below a microsecond per message and the same for every system.
"""

from __future__ import annotations

import random
import struct
import time
import zlib

PAYLOAD_BYTES = 256
CRC32_OF_INTACT = 0x2144DF1C
FILLER_POOL_BYTES = 65_536
FILLER_SEED = 7411

_HEAD = struct.Struct("<Qq")
_CRC = struct.Struct("<I")
_FILLER_BYTES = PAYLOAD_BYTES - _HEAD.size - _CRC.size
_FILLER_POOL = random.Random(FILLER_SEED).randbytes(FILLER_POOL_BYTES)
_FILLER_STARTS = FILLER_POOL_BYTES - _FILLER_BYTES
# Coprime to the number of starts, so that consecutive messages differ and all starts are used.
_FILLER_STRIDE = 251


class PayloadWrong(AssertionError):
    """A message arrived damaged, twice, or was never sent; the run does not count."""


def make_payload(sequence: int, sent_ns: int) -> bytes:
    """Return the payload of one message."""
    start = sequence * _FILLER_STRIDE % _FILLER_STARTS
    body = _HEAD.pack(sequence, sent_ns) + _FILLER_POOL[start : start + _FILLER_BYTES]
    return body + _CRC.pack(zlib.crc32(body))


class PayloadChecker:
    """Checks that each message arrives intact and once."""

    def __init__(self, messages: int) -> None:
        self.messages = messages
        self.received = 0
        self._seen = bytearray(messages)

    @property
    def complete(self) -> bool:
        """Whether every message has arrived."""
        return self.received == self.messages

    def check(self, payload: bytes) -> int:
        """Count one message and return its send time in nanoseconds, or raise `PayloadWrong`."""
        if zlib.crc32(payload) != CRC32_OF_INTACT or len(payload) != PAYLOAD_BYTES:
            raise PayloadWrong(f"message {self.received + 1} of this run came damaged")
        sequence: int
        sent_ns: int
        sequence, sent_ns = _HEAD.unpack_from(payload)
        if sequence >= self.messages:
            raise PayloadWrong(f"message {sequence} was never sent in this run")
        if self._seen[sequence]:
            raise PayloadWrong(f"message {sequence} came twice")
        self._seen[sequence] = 1
        self.received += 1
        return sent_ns


class LatencyRecord:
    """The latencies of messages; percentiles leave out the first tenth as warm-up."""

    def __init__(self, messages: int) -> None:
        self._skip = messages // 10
        self._latencies_ns: list[int] = []

    def add_since(self, sent_ns: int) -> None:
        """Record the time from `sent_ns` until now."""
        self._latencies_ns.append(time.monotonic_ns() - sent_ns)

    def percentile_ms(self, share: float) -> float:
        """Return a percentile in milliseconds, with `share` from 0 to 1; NaN without records."""
        counted = sorted(self._latencies_ns[self._skip :])
        if not counted:
            return float("nan")
        return counted[min(len(counted) - 1, int(share * len(counted)))] / 1e6
