"""What every benchmark message carries, and how the far end knows that it came whole.

Strategy: 8 bytes of sequence, 8 bytes of send time (monotonic nanoseconds, one clock for all
processes of a machine), filler that differs from message to message, and at the end the CRC-32
of all that. With the checksum last and little-endian, the checksum of the whole payload is a
constant for every intact message, so the receiver checks it in one call without slicing. A
bitmap knows each sequence once. The cost is below a microsecond a message and the same for every
system measured.
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
# Coprime to the number of starts, so neighbours differ and all starts are used.
_FILLER_STRIDE = 251


class PayloadWrong(AssertionError):
    """A message came damaged, twice, or out of nowhere: the run counts for nothing."""


def make_payload(sequence: int, sent_ns: int) -> bytes:
    """The payload of one message."""
    start = sequence * _FILLER_STRIDE % _FILLER_STARTS
    body = _HEAD.pack(sequence, sent_ns) + _FILLER_POOL[start : start + _FILLER_BYTES]
    return body + _CRC.pack(zlib.crc32(body))


class PayloadChecker:
    """Counts messages in, each intact and each once."""

    def __init__(self, messages: int) -> None:
        self.messages = messages
        self.received = 0
        self._seen = bytearray(messages)

    @property
    def complete(self) -> bool:
        """Whether every message has come."""
        return self.received == self.messages

    def check(self, payload: bytes) -> int:
        """Take one message in and return its send time, or raise PayloadWrong."""
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
    """Nanoseconds of each message, the first tenth left out as warm-up."""

    def __init__(self, messages: int) -> None:
        self._skip = messages // 10
        self._latencies_ns: list[int] = []

    def add_since(self, sent_ns: int) -> None:
        """Record the time from then to now."""
        self._latencies_ns.append(time.monotonic_ns() - sent_ns)

    def percentile_ms(self, share: float) -> float:
        """The latency that this share of the messages stayed within, in milliseconds."""
        counted = sorted(self._latencies_ns[self._skip :])
        if not counted:
            return float("nan")
        return counted[min(len(counted) - 1, int(share * len(counted)))] / 1e6
