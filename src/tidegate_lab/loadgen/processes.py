"""Child processes that exchange lines of JSON with their parent.

The parent writes a line, and the child answers with one line. If a child fails or does not answer
in time, the parent gets `ChildFailed` with the end of the child's standard error. The child ends
when the parent leaves the block. A child whose parent died reads the end of its input and ends too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import selectors
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar

import msgspec
import uvloop

KILL_WAIT_S = 5.0
STDERR_TAIL_BYTES = 3000

Answer = TypeVar("Answer")


class ChildFailed(RuntimeError):
    """A child process failed, or did not answer in time."""


class Child:
    """A process `python -m module arguments…` that answers lines of JSON; use it with `with`."""

    def __init__(self, module: str, arguments: Sequence[str] = ()) -> None:
        self._module = module
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            # Only the parent handles Ctrl-C; it then ends its children by their ids.
            start_new_session=True,
        )
        self._received = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            # The child ends by itself when its input ends.
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                assert self._process.stdin is not None
                self._process.stdin.close()
                self._process.wait(KILL_WAIT_S)
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(KILL_WAIT_S)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()
        self._stderr.close()

    def say(self, what: object) -> None:
        """Write one line of JSON; raise `ChildFailed` if the child has ended."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(msgspec.json.encode(what) + b"\n")
            stdin.flush()
        except OSError:
            self._process.wait(KILL_WAIT_S)
            raise self._failure(f"ended with {self._process.returncode}") from None

    def hear(self, kind: type[Answer], timeout_s: float) -> Answer:
        """Return the child's next answer, decoded as `kind`.

        `ChildFailed` means that the child ended or did not answer within `timeout_s`.
        """
        return msgspec.json.decode(self._next_line(time.monotonic() + timeout_s), type=kind)

    def check(self) -> None:
        """Raise `ChildFailed` if the child has ended."""
        if self._process.poll() is not None:
            raise self._failure(f"ended with {self._process.returncode}")

    def has_answered(self, wait_s: float) -> bool:
        """Wait up to `wait_s` and return whether the child has answered or ended."""
        if b"\n" in self._received:
            return True
        stdout = self._process.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            return bool(selector.select(timeout=wait_s))

    def _next_line(self, deadline: float) -> bytes:
        stdout = self._process.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while b"\n" not in self._received:
                if not selector.select(timeout=max(deadline - time.monotonic(), 0.0)):
                    raise self._failure("did not answer in time")
                chunk = os.read(stdout.fileno(), 1 << 20)
                if not chunk:
                    self._process.wait(KILL_WAIT_S)
                    raise self._failure(f"ended with {self._process.returncode}")
                self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _failure(self, what: str) -> ChildFailed:
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - STDERR_TAIL_BYTES))
        complaint = self._stderr.read().decode(errors="replace")
        return ChildFailed(f"{self._module} {what}:\n{complaint}")


def answer(what: object) -> None:
    """Answer the parent; called in the child."""
    left = memoryview(msgspec.json.encode(what) + b"\n")
    # With PYTHONUNBUFFERED there is no buffer, and a write of more than a pipe holds may be
    # partial. The parent would wait for the rest of the line.
    while left:
        left = left[sys.stdout.buffer.write(left) :]
    sys.stdout.buffer.flush()


# Payloads of benchmark messages, with a checksum that the consumer verifies.
#
#     8 bytes   sequence number
#     8 bytes   send time in nanoseconds of the monotonic clock, which all processes share
#     filler    differs from message to message
#     4 bytes   CRC-32 of all bytes before it, little-endian
#
# With the checksum at the end, the CRC-32 of a whole intact payload is a constant. The consumer
# therefore verifies it with one call and no slice. A byte per sequence number detects duplicates.
# The cost is below a microsecond per message and the same for every system.


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


# The parts of a measurement that are the same for every system: payloads, clock, latencies, start.
#
# A contender (a module in `lab/peers`) has a function `produce(side)` and a function
# `consume(side)`,
# which only drive a client library. The clock starts at the first put and stops when the consumer
# has
# acknowledged the last message.


READY_LINE = "ready"
GO_LINE = "go"
PACE_TICK_S = 0.001
# At a fixed rate a slow system falls behind. With more unconfirmed messages it counts as failed.
UNCONFIRMED_MAX = 20_000

Mode = Literal["throughput", "latency"]
Role = Literal["produce", "consume"]


class SideTask(msgspec.Struct, frozen=True):
    """The task of one process of a measurement."""

    module: str
    role: Role
    mode: Mode
    port: int
    queue: str
    messages: int
    in_flight: int
    rate_per_s: float = 0.0
    settings: dict[str, str] = msgspec.field(default_factory=dict)


class SideResult(msgspec.Struct, frozen=True):
    """The result of one process.

    Latencies are None in a throughput run, and NaN if a latency run recorded none.
    """

    messages: int
    begun_ns: int
    ended_ns: int
    p50_ms: float | None = None
    p99_ms: float | None = None


class _Side:
    def __init__(self, work: SideTask) -> None:
        self.work = work
        self.latency = LatencyRecord(work.messages) if work.mode == "latency" else None
        self.begun_ns = 0
        self.ended_ns = 0

    def outcome(self, messages: int) -> SideResult:
        """Return the result after the work is done."""
        return SideResult(
            messages=messages,
            begun_ns=self.begun_ns,
            ended_ns=self.ended_ns,
            p50_ms=self.latency.percentile_ms(0.50) if self.latency else None,
            p99_ms=self.latency.percentile_ms(0.99) if self.latency else None,
        )


class ProducerSide(_Side):
    """The producer's side: sends each sequence number once and counts confirmations."""

    def __init__(self, work: SideTask) -> None:
        super().__init__(work)
        # Made before the clock starts: the time to make payloads is no system's time.
        self.payloads = (
            [make_payload(sequence, 0) for sequence in range(work.messages)]
            if work.mode == "throughput"
            else []
        )

    def wait_for_go(self) -> None:
        """Report that the producer is connected, and wait until the consumer is ready too."""
        print(READY_LINE, flush=True)
        if sys.stdin.readline().strip() != GO_LINE:
            raise SystemExit("the measurement was called off")
        self.begun_ns = time.monotonic_ns()

    def confirmed_all(self) -> None:
        """Stop the producer's clock."""
        self.ended_ns = time.monotonic_ns()

    def confirmed(self, sent_ns: int) -> None:
        """Record the confirmation of a message that was sent at `sent_ns`."""
        if self.latency is not None:
            self.latency.add_since(sent_ns)

    async def put_all(self, put: Callable[[bytes], Awaitable[object]]) -> None:
        """Send all messages, with one awaited call of `put` for each.

        In throughput mode, `in_flight` tasks put at the same time. In latency mode, messages are
        put at the fixed rate without waiting for answers.
        """
        if self.work.mode == "throughput":
            await self._put_by_tasks(put)
        else:
            await self._put_paced(put)
        self.confirmed_all()

    async def _put_by_tasks(self, put: Callable[[bytes], Awaitable[object]]) -> None:
        payloads = iter(self.payloads)

        async def put_in_turn() -> None:
            # All tasks share the iterator; each takes the next payload after its put returned.
            for payload in payloads:
                await put(payload)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(self.work.in_flight):
                tasks.create_task(put_in_turn())

    async def _put_paced(self, put: Callable[[bytes], Awaitable[object]]) -> None:
        unconfirmed = 0

        async def put_once(sequence: int) -> None:
            nonlocal unconfirmed
            sent_ns = time.monotonic_ns()
            await put(make_payload(sequence, sent_ns))
            self.confirmed(sent_ns)
            unconfirmed -= 1

        begun_s = time.monotonic()
        sent = 0
        async with asyncio.TaskGroup() as tasks:
            while sent < self.work.messages:
                due = self.due_after(time.monotonic() - begun_s)
                for sequence in range(sent, due):
                    unconfirmed += 1
                    tasks.create_task(put_once(sequence))
                sent = due
                self.check_backlog(unconfirmed)
                await asyncio.sleep(PACE_TICK_S)

    def due_after(self, elapsed_s: float) -> int:
        """Return how many messages must be sent after `elapsed_s` at the fixed rate."""
        return min(self.work.messages, int(elapsed_s * self.work.rate_per_s) + 1)

    def check_backlog(self, unconfirmed: int) -> None:
        """Raise `RuntimeError` if the system is too far behind the offered rate."""
        if unconfirmed > UNCONFIRMED_MAX:
            raise RuntimeError(
                f"{unconfirmed} messages unconfirmed at {self.work.rate_per_s:.0f} msg/s offered"
            )


class ConsumerSide(_Side):
    """The consumer's side: checks every message and records its latency."""

    def __init__(self, work: SideTask) -> None:
        super().__init__(work)
        self.checker = PayloadChecker(work.messages)

    @property
    def complete(self) -> bool:
        """Whether every message has arrived."""
        return self.checker.complete

    def ready(self) -> None:
        """Report that the queue exists and the consumer is subscribed."""
        print(READY_LINE, flush=True)
        self.begun_ns = time.monotonic_ns()

    def handle(self, payload: bytes) -> None:
        """Check one message and record its latency."""
        sent_ns = self.checker.check(payload)
        if self.latency is not None:
            self.latency.add_since(sent_ns)

    def acknowledged_all(self) -> None:
        """Stop the clock after the last message has been acknowledged."""
        self.ended_ns = time.monotonic_ns()


def run_on_uvloop(main: Coroutine[Any, Any, None]) -> None:
    """Run an asyncio contender on uvloop, the fastest loop, for every system."""
    uvloop.run(main)
