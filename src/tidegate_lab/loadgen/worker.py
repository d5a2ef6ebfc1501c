"""One process of a measurement: `python -m tidegate_lab.loadgen.worker <SideTask as JSON>`.

The producer and the consumer are separate processes, as in production. Each imports the one
contender that it drives, prints `ready`, and prints its result as its last line. An alarm ends the
process if its parent was killed and cannot end it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from typing import IO

import msgspec

from tidegate_lab.loadgen.processes import (
    GO_LINE,
    READY_LINE,
    ConsumerSide,
    Mode,
    ProducerSide,
    Role,
    SideResult,
    SideTask,
)
from tidegate_lab.peers.contenders import Contender

# One measurement: a producer process and a consumer process against a running server.
#
# The consumer declares the queue and subscribes; the producer connects and prepares its payloads.
# The
# producer begins when both are ready. If one of them fails or the time is up, both are ended, and
# `WorkerProcessFailed` has the end of the failed process's standard error. A measurement therefore
# has either checked numbers or none.


MEASUREMENT_SECONDS_MAX = 120.0
KILL_WAIT_S = 5.0
STDERR_TAIL_BYTES = 3000


class WorkerProcessFailed(RuntimeError):
    """A process of the measurement failed, took too long, or missed messages."""


class Throughput(msgspec.Struct, frozen=True):
    """The messages and the seconds from the first put to the last acknowledgement."""

    messages: int
    seconds: float

    @property
    def messages_per_s(self) -> float:
        """The throughput in messages per second."""
        return self.messages / self.seconds


class Latency(msgspec.Struct, frozen=True):
    """Milliseconds from the put to the confirmation and to the handler, at a fixed rate."""

    confirm_p50: float
    confirm_p99: float
    handler_p50: float
    handler_p99: float


def measure_throughput(contender: Contender, port: int, messages: int) -> Throughput:
    """Measure the time to send and consume this many messages as fast as possible."""
    produced, consumed = _run(contender, port, "throughput", messages, 0.0)
    return Throughput(messages, (consumed.ended_ns - produced.begun_ns) / 1e9)


def measure_latency(contender: Contender, port: int, rate_per_s: float, seconds: float) -> Latency:
    """Measure latencies at a fixed rate that does not depend on the system's answers."""
    messages = int(rate_per_s * seconds)
    produced, consumed = _run(contender, port, "latency", messages, rate_per_s)
    return Latency(
        confirm_p50=produced.p50_ms or 0.0,
        confirm_p99=produced.p99_ms or 0.0,
        handler_p50=consumed.p50_ms or 0.0,
        handler_p99=consumed.p99_ms or 0.0,
    )


def _run(
    contender: Contender, port: int, mode: Mode, messages: int, rate_per_s: float
) -> tuple[SideResult, SideResult]:
    queue = f"bench-{uuid.uuid4().hex[:12]}"

    def work(role: Role) -> SideTask:
        return SideTask(
            module=contender.module,
            role=role,
            mode=mode,
            port=port,
            queue=queue,
            messages=messages,
            in_flight=contender.in_flight,
            rate_per_s=rate_per_s,
            settings=contender.settings,
        )

    deadline = time.monotonic() + MEASUREMENT_SECONDS_MAX
    with _Worker(work("consume")) as consumer, _Worker(work("produce")) as producer:
        pair = (consumer, producer)
        for worker in pair:
            worker.wait_for_line(READY_LINE, deadline, pair)
        producer.say(GO_LINE)
        consumed = consumer.wait_for_outcome(deadline, pair)
        produced = producer.wait_for_outcome(deadline, pair)
    for outcome in (produced, consumed):
        if outcome.messages != messages:
            raise WorkerProcessFailed(f"{contender.name}: {outcome.messages} of {messages} came")
    return produced, consumed


class _Worker:
    """A child process that exchanges lines with its parent."""

    def __init__(self, work: SideTask) -> None:
        self._work = work
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tidegate_lab.loadgen.worker"),
                msgspec.json.encode(work).decode(),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            # Only the parent handles Ctrl-C; it then ends its children by their ids.
            start_new_session=True,
        )
        self._received = b""

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(KILL_WAIT_S)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()
        self._stderr.close()

    def say(self, line: str) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(f"{line}\n".encode())
        stdin.flush()

    def wait_for_line(self, expected: str, deadline: float, pair: tuple[_Worker, ...]) -> None:
        line = self._next_line(deadline, pair)
        if line != expected.encode():
            raise self._failure(f"said {line[:200]!r} instead of {expected!r}")

    def wait_for_outcome(self, deadline: float, pair: tuple[_Worker, ...]) -> SideResult:
        return msgspec.json.decode(self._next_line(deadline, pair), type=SideResult)

    def raise_if_failed(self) -> None:
        if self._process.poll() not in (None, 0):
            raise self._failure(f"ended with {self._process.returncode}")

    def _next_line(self, deadline: float, pair: tuple[_Worker, ...]) -> bytes:
        stdout = self._process.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while b"\n" not in self._received:
                for worker in pair:
                    worker.raise_if_failed()
                if time.monotonic() > deadline:
                    raise self._failure(f"was not done in {MEASUREMENT_SECONDS_MAX:.0f} s")
                # Wake up twice a second, because the other process may have failed meanwhile.
                if selector.select(timeout=0.5):
                    chunk = os.read(stdout.fileno(), 65_536)
                    if not chunk:
                        self._process.wait(KILL_WAIT_S)
                        raise self._failure(f"ended with {self._process.returncode}")
                    self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _failure(self, what: str) -> WorkerProcessFailed:
        return WorkerProcessFailed(
            f"{self._work.module} ({self._work.role}) {what}:\n{_tail(self._stderr)}"
        )


def _tail(stream: IO[bytes]) -> str:
    stream.seek(0, os.SEEK_END)
    stream.seek(max(0, stream.tell() - STDERR_TAIL_BYTES))
    return stream.read().decode(errors="replace")


PROCESS_SECONDS_MAX = 180


def run(work: SideTask) -> SideResult:
    """Run the producer or the consumer of a measurement and return its result."""
    contender = importlib.import_module(work.module)
    if work.role == "produce":
        producer = ProducerSide(work)
        contender.produce(producer)
        return producer.outcome(work.messages)
    consumer = ConsumerSide(work)
    contender.consume(consumer)
    return consumer.outcome(consumer.checker.received)


if __name__ == "__main__":
    signal.alarm(PROCESS_SECONDS_MAX)
    print(msgspec.json.encode(run(msgspec.json.decode(sys.argv[1], type=SideTask))).decode())
