"""One process of the backlog benchmark.

    python -m tidegate.lab.bench.backlog_process <BacklogShare as JSON>

A loader fills the queue with `put_many`. A producer and a consumer put and take single messages, as
in the comparison with other brokers. Messages carry sequence numbers. The consumer expects them
without a gap from the number at which the previous consumer stopped. So every message checks that a
long queue stays first in, first out.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import time
import zlib
from typing import Literal

import msgspec
import uvloop

import tidegate
from tidegate.lab.bench.child import answer
from tidegate.lab.bench.payload import CRC32_OF_INTACT, PayloadWrong, make_payload

MESSAGES_PER_PUT = 2500
LOADS_IN_FLIGHT = 6
PUTS_IN_FLIGHT = 1000
PREFETCH = 2000

_SEQUENCE = struct.Struct("<Q")


class Share(msgspec.Struct, frozen=True):
    """The task of one process: a role and a range of sequence numbers."""

    role: Literal["load", "put", "take"]
    url: str
    queue: str
    first: int
    count: int


class Ended(msgspec.Struct, frozen=True):
    """The start and the end of a task on the monotonic clock, which all processes share."""

    begun_s: float
    ended_s: float

    @property
    def seconds(self) -> float:
        return self.ended_s - self.begun_s


async def work(share: Share) -> Ended:
    """Connect, wait for a line from the parent, and do the task."""
    async with tidegate.connect(share.url) as mq:
        answer("ready")
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        begun_s = time.monotonic()
        if share.role == "load":
            await _load(mq, share)
        elif share.role == "put":
            await _put(mq, share)
        else:
            await _take(mq, share)
        return Ended(begun_s, time.monotonic())


async def _load(mq: tidegate.Client, share: Share) -> None:
    end = share.first + share.count
    starts = iter(range(share.first, end, MESSAGES_PER_PUT))
    # The tasks share the iterator and each puts at once, so the queue has the numbers in order.

    async def load() -> None:
        for start in starts:
            sequences = range(start, min(start + MESSAGES_PER_PUT, end))
            await mq.put_many(share.queue, [make_payload(number, 0) for number in sequences])

    async with asyncio.TaskGroup() as tasks:
        for _ in range(LOADS_IN_FLIGHT):
            tasks.create_task(load())


async def _put(mq: tidegate.Client, share: Share) -> None:
    sequences = iter(range(share.first, share.first + share.count))

    async def put_in_turn() -> None:
        for sequence in sequences:
            await mq.put(share.queue, make_payload(sequence, 0))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(PUTS_IN_FLIGHT):
            tasks.create_task(put_in_turn())


async def _take(mq: tidegate.Client, share: Share) -> None:
    expected = share.first
    end = share.first + share.count
    async with mq.subscribe(share.queue, prefetch=PREFETCH) as subscription:
        async for message in subscription:
            payload = message.payload
            if zlib.crc32(payload) != CRC32_OF_INTACT:
                raise PayloadWrong(f"message {expected} came damaged")
            (sequence,) = _SEQUENCE.unpack_from(payload)
            if sequence != expected:
                raise PayloadWrong(f"message {sequence} came where {expected} was due")
            message.ack()
            expected += 1
            if expected == end:
                break
        await mq.ping()  # A round trip: the node has taken the last ack.


if __name__ == "__main__":
    answer(uvloop.run(work(msgspec.json.decode(sys.argv[1], type=Share))))
