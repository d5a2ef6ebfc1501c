"""`tidegate bench backlog`: the throughput of a queue with a large backlog.

The queues of the papers became slower as they filled. This benchmark checks that ours do not.

Two servers run, one with an empty queue and one whose queue holds the backlog. A producer process
and a consumer process put and take the same number of messages on each in turn, one message per
call. On the full queue, the consumer takes from the front of the backlog while the producer adds
at its end, so the backlog keeps its length. The throughput is the number of messages over the time
until both processes are done.

If the backlog exceeds the node's memory, the benchmark first moves as many messages as the memory
holds. Then all further messages come from the store. The memory of the loaded node is sampled all
the time, and must stay below its bound plus a fixed allowance.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

import tidegate
from tidegate.client.blocking import BlockingClient
from tidegate_lab.bench.compare import QUIET, Processors, describe_machine
from tidegate_lab.bench.compare_report import Bar, BarredReport, bar_table
from tidegate_lab.loadgen.processes import (
    CRC32_OF_INTACT,
    Child,
    PayloadWrong,
    answer,
    make_payload,
)
from tidegate_lab.peers.servers import tidegate_server

MIB = 1024 * 1024
QUEUE = "backlog"
WANTED_RATIO = 0.8
ALLOWANCE_MIB = 150
CALIBRATION_MESSAGES = 20_000
WATCH_EVERY_S = 0.5
READY_TIMEOUT_S = 30.0
MEASUREMENT_SECONDS_MAX = 600.0
Progress = Callable[[str], None]


class BacklogOptions(msgspec.Struct, frozen=True):
    """The lengths of the backlogs, and the number and length of the runs."""

    backlogs: Sequence[int] = (1_000_000, 5_000_000)
    rounds: int = 3
    seconds_per_run: float = 4.0
    # Messages per run; None calibrates them so that a run takes `seconds_per_run`.
    messages: int | None = None

    @staticmethod
    def quick() -> BacklogOptions:
        """Return options for a short run, whose figures are not meaningful."""
        return BacklogOptions(backlogs=(20_000,), rounds=1, messages=10_000)


class BacklogFailed(RuntimeError):
    """A queue has a wrong number of messages after a run, or a run took too long."""


class BacklogReport(BarredReport, frozen=True):
    """Medians by backlog; the keys are the lengths of the backlogs as text.

    `throughput_empty` and `rounds_empty` are of the empty queue, measured in turn with it.
    """

    throughput: dict[str, float]
    throughput_empty: dict[str, float]
    ratio: dict[str, float]
    memory_mib: dict[str, float]
    memory_bound_mib: float
    loaded_per_s: dict[str, float]
    messages_per_run: int
    rounds: dict[str, list[float]]
    rounds_empty: dict[str, list[float]]
    # The share of the machine that other processes used during the run.
    taken_by_others: float
    environment: dict[str, str]


class _QueueUnderTest:
    """A queue on its own server, with the sequence numbers in it and the node's peak memory."""

    def __init__(self, url: str, control: BlockingClient) -> None:
        self._url = url
        self._control = control
        # The queue holds the sequence numbers from `_taken` up to, but without, `_put`.
        self._taken = 0
        self._put = 0
        self.memory_bytes_max = 0

    @property
    def waiting(self) -> int:
        return self._put - self._taken

    def load(self, count: int) -> float:
        """Put `count` messages as fast as possible and return messages per second."""
        (ended,) = self._run([BacklogShare("load", self._url, QUEUE, self._put, count)])
        self._put += count
        self._check()
        return count / ended.seconds

    def move(self, count: int) -> float:
        """Put and take `count` messages at the same time and return messages per second."""
        shares = [
            BacklogShare("take", self._url, QUEUE, self._taken, count),
            BacklogShare("put", self._url, QUEUE, self._put, count),
        ]
        ended = self._run(shares)
        self._put += count
        self._taken += count
        self._check()
        begun_s = min(one.begun_s for one in ended)
        return count / (max(one.ended_s for one in ended) - begun_s)

    def reach_the_store(self) -> int:
        """Move the messages that are in memory, so that all further ones come from the store.

        Return their number, or 0 if the whole backlog is in memory.
        """
        queue = self._control.stats(QUEUE).queue(QUEUE)
        assert queue is not None
        resident = queue.waiting - queue.waiting_in_store
        if not queue.waiting_in_store or not resident:
            return 0
        self.move(resident)
        return resident

    def _run(self, shares: Sequence[BacklogShare]) -> list[TimedRun]:
        with contextlib.ExitStack() as stack:
            children = [
                stack.enter_context(
                    Child("tidegate_lab.bench.backlog", [msgspec.json.encode(share).decode()])
                )
                for share in shares
            ]
            for child in children:
                child.hear(str, READY_TIMEOUT_S)
            for child in children:
                child.say("go")
            return self._watch(children)

    def _watch(self, children: Sequence[Child]) -> list[TimedRun]:
        """Sample the node's memory until all children have answered."""
        deadline = time.monotonic() + MEASUREMENT_SECONDS_MAX
        ended: list[TimedRun] = []
        for child in children:
            while not child.has_answered(WATCH_EVERY_S):
                self.look()
                if time.monotonic() > deadline:
                    raise BacklogFailed(f"not done in {MEASUREMENT_SECONDS_MAX:.0f} s")
            ended.append(child.hear(TimedRun, 1.0))
        self.look()
        return ended

    def look(self) -> None:
        node = self._control.stats().nodes[0]
        self.memory_bytes_max = max(self.memory_bytes_max, node.process_memory_bytes)

    @property
    def memory_bound_bytes(self) -> int:
        return self._control.stats().nodes[0].memory_bound_bytes

    def _check(self) -> None:
        """Raise `BacklogFailed` if the queue's length is not as expected."""
        queue = self._control.stats(QUEUE).queue(QUEUE)
        found = None if queue is None else queue.waiting + queue.unacknowledged
        if found != self.waiting:
            raise BacklogFailed(f"{self.waiting} messages should wait, {found} do")


@contextlib.contextmanager
def _queue_under_test() -> Iterator[_QueueUnderTest]:
    with tidegate_server() as server:
        url = f"tidegate://127.0.0.1:{server.port}"
        with tidegate.connect(url, mode="admin") as control:
            control.create_queue(QUEUE, durable=True)
            yield _QueueUnderTest(url, control)


def run_backlog(options: BacklogOptions, progress: Progress = lambda line: None) -> BacklogReport:
    """Fill a queue, measure it in turn with an empty one, and return the report."""
    rounds: dict[str, list[float]] = {}
    rounds_empty: dict[str, list[float]] = {}
    memory_mib: dict[str, float] = {}
    loaded_per_s: dict[str, float] = {}
    with _queue_under_test() as empty, _queue_under_test() as full:
        processors = Processors()
        messages = options.messages or _calibrate(empty, options.seconds_per_run)
        for backlog in sorted(options.backlogs):
            name = str(backlog)
            full.memory_bytes_max = 0
            loaded_per_s[name] = full.load(backlog - full.waiting)
            progress(f"{backlog:,} messages wait, loaded at {loaded_per_s[name]:,.0f} msg/s")
            moved = full.reach_the_store()
            if moved:
                progress(f"moved {moved:,} on: the front of the queue is in the store only now")
            rounds[name], rounds_empty[name] = [], []
            for round_number in range(1, options.rounds + 1):
                rounds_empty[name].append(empty.move(messages))
                rounds[name].append(full.move(messages))
                progress(
                    f"round {round_number}: empty {rounds_empty[name][-1]:,.0f} msg/s, "
                    f"with {backlog:,} waiting {rounds[name][-1]:,.0f} msg/s"
                )
            memory_mib[name] = full.memory_bytes_max / MIB
        bound_mib = full.memory_bound_bytes / MIB
        taken_by_others = processors.share_of_others()
    throughput = {name: statistics.median(found) for name, found in rounds.items()}
    throughput_empty = {name: statistics.median(found) for name, found in rounds_empty.items()}
    ratio = {name: throughput[name] / throughput_empty[name] for name in throughput}
    return BacklogReport(
        throughput=throughput,
        throughput_empty=throughput_empty,
        ratio=ratio,
        memory_mib=memory_mib,
        memory_bound_mib=bound_mib,
        loaded_per_s=loaded_per_s,
        messages_per_run=messages,
        rounds=rounds,
        rounds_empty=rounds_empty,
        bars=_bars(ratio, memory_mib, bound_mib),
        taken_by_others=taken_by_others,
        environment=describe_machine(),
    )


def _calibrate(queue: _QueueUnderTest, seconds: float) -> int:
    """Return how many messages take the given seconds; also warms up the queue."""
    rate = queue.move(CALIBRATION_MESSAGES)
    rate = queue.move(int(rate))
    return max(CALIBRATION_MESSAGES, int(rate * seconds))


def _bars(ratio: dict[str, float], memory_mib: dict[str, float], bound_mib: float) -> list[Bar]:
    bars = []
    for name, figure in ratio.items():
        backlog = f"{int(name):,} waiting"
        bars += [
            Bar(f"throughput with {backlog}, of that on an empty queue", figure, WANTED_RATIO, "×"),
            Bar(
                f"node memory with {backlog}: its bound and {ALLOWANCE_MIB} MiB",
                memory_mib[name],
                bound_mib + ALLOWANCE_MIB,
                "MiB",
                at_most=True,
            ),
        ]
    return bars


def render_backlog(report: BacklogReport, console: Console) -> None:
    """Print the figures, then the bars."""
    table = Table(title=f"A queue as it fills, {report.messages_per_run:,} messages per run")
    for column in ("waiting", "msg/s", "msg/s empty", "ratio", "node MiB", "loaded at"):
        table.add_column(column, justify="right")
    for name, figure in report.throughput.items():
        table.add_row(
            f"{int(name):,}",
            f"{figure:,.0f}",
            f"{report.throughput_empty[name]:,.0f}",
            f"{report.ratio[name]:.2f}",
            f"{report.memory_mib[name]:,.0f}",
            f"{report.loaded_per_s[name]:,.0f}",
        )
    console.print(table)
    console.print(bar_table(report.bars))
    if report.taken_by_others > QUIET:
        console.print(
            f"Other processes took {100 * report.taken_by_others:.0f} % of the machine meanwhile.",
            style="yellow",
        )


# One process of the backlog benchmark.
#
#     python -m tidegate_lab.bench.backlog <BacklogShare as JSON>
#
# A loader fills the queue with `put_many`. A producer and a consumer put and take single messages,
# as in the comparison with other brokers. Messages carry sequence numbers. The consumer expects
# them without a gap from the number at which the previous consumer stopped. So every message checks
# that a long queue stays first in, first out.


MESSAGES_PER_PUT = 2500
LOADS_IN_FLIGHT = 6
PUTS_IN_FLIGHT = 1000
PREFETCH = 2000

_SEQUENCE = struct.Struct("<Q")


class BacklogShare(msgspec.Struct, frozen=True):
    """The task of one process: a role and a range of sequence numbers."""

    role: Literal["load", "put", "take"]
    url: str
    queue: str
    first: int
    count: int


class TimedRun(msgspec.Struct, frozen=True):
    """The start and the end of a task on the monotonic clock, which all processes share."""

    begun_s: float
    ended_s: float

    @property
    def seconds(self) -> float:
        return self.ended_s - self.begun_s


async def work(share: BacklogShare) -> TimedRun:
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
        return TimedRun(begun_s, time.monotonic())


async def _load(mq: tidegate.Client, share: BacklogShare) -> None:
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


async def _put(mq: tidegate.Client, share: BacklogShare) -> None:
    sequences = iter(range(share.first, share.first + share.count))

    async def put_in_turn() -> None:
        for sequence in sequences:
            await mq.put(share.queue, make_payload(sequence, 0))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(PUTS_IN_FLIGHT):
            tasks.create_task(put_in_turn())


async def _take(mq: tidegate.Client, share: BacklogShare) -> None:
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
    answer(uvloop.run(work(msgspec.json.decode(sys.argv[1], type=BacklogShare))))
