"""A load generator: producers and consumers as processes that count every message.

Theory of operation

The parent (`LoadProcesses`) starts one process per producer and consumer:

    python -m tidegate_lab.loadgen.load <LoadTask as JSON>

A process connects, a consumer also subscribes, and then the process prints `ready`. When all are
ready, the parent writes `go` to each. A producer works until the end of its last phase, a consumer
until the parent writes `stop`. A process prints its result as its last line. If its standard input
ends earlier, its parent is gone, and the process ends too.

Every message carries the number of its producer, its sequence number and the time of its put. The
consumers therefore know which messages arrived, which arrived twice, and how long each took. All
processes of a machine share one monotonic clock.

Producers put through the public API with one future per message. With a rate they put at that rate
regardless of the answers, up to `in_flight_max` messages in flight. Without a rate they keep
`in_flight_max` messages in flight.

A confirmed message that no consumer handled is lost, if the queue was empty at the end. A failed
put is in neither count, because it may or may not be stored.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
import struct
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from typing import IO, TYPE_CHECKING, Any, Literal

import msgspec

import tidegate
from tidegate.core.errors import InvalidValue, TidegateError
from tidegate.telemetry.meters import Histogram, bucket_of
from tidegate.telemetry.stats import Durations, make_durations

if TYPE_CHECKING:
    from rich.console import Console

_HEAD = struct.Struct("<IQq")
SIZE_BYTES_MIN = _HEAD.size
_TICK_S = 0.002
_START_S_MAX = 20.0
# Long enough for the restart of a node; if the node does not return, the load fails.
_RECONNECT_S = 15.0
_DELETE_S_MAX = 5.0

Progress = Callable[[str], None]


class LoadFailed(TidegateError):
    """A process of the load failed."""

    name = "LOAD_FAILED"


# The task of one process, and its result


class LoadPhase(msgspec.Struct, frozen=True):
    """A period at one rate, from the start of the load; rate `None` means as fast as possible."""

    begin_s: float
    end_s: float
    rate_per_s: float | None = None


class LoadTask(msgspec.Struct, frozen=True, kw_only=True):
    """The task of one process."""

    role: Literal["produce", "consume"]
    url: str
    queue: str
    name: str | None = None
    # For a producer
    number: int = 0
    size_bytes: int = 256
    phases: Sequence[LoadPhase] = ()
    in_flight_max: int = 1000
    # For a consumer
    prefetch: int = 200
    service_s: float = 0.0


class LoadProcessResult(msgspec.Struct, kw_only=True):
    """The result of one process."""

    put: int = 0
    confirmed: int = 0
    # Sequence numbers of failed puts, which may or may not be stored.
    failed: list[int] = []
    begun_ns: int = 0
    ended_ns: int = 0
    handled: int = 0
    # By producer: a bitmap of the sequence numbers that arrived, as base64.
    seen: dict[int, str] = {}
    # Histogram from put to confirmation (producer) or from put to handler (consumer): the upper
    # bound of each bucket in seconds, and its count.
    latency: list[tuple[float, int]] = []
    latency_max_s: float = 0.0


class Sequences:
    """The sequence numbers of each producer that have arrived."""

    def __init__(self) -> None:
        self._bits: dict[int, bytearray] = defaultdict(bytearray)
        self.repeats = 0

    def add(self, producer: int, sequence: int) -> None:
        bits = self._bits[producer]
        byte, bit = sequence >> 3, 1 << (sequence & 7)
        if byte >= len(bits):
            bits.extend(bytes(max(byte + 1 - len(bits), 4096)))
        if bits[byte] & bit:
            self.repeats += 1
        bits[byte] |= bit

    def add_all(self, seen: dict[int, str]) -> None:
        """Add the sequence numbers of another process; a number that both have is a repeat."""
        for producer, text in seen.items():
            theirs = int.from_bytes(base64.b64decode(text), "little")
            ours = int.from_bytes(self._bits[producer], "little")
            self.repeats += (ours & theirs).bit_count()
            joined = ours | theirs
            self._bits[producer] = bytearray(
                joined.to_bytes(joined.bit_length() // 8 + 1, "little")
            )

    def missing(self, producer: int, count: int, except_for: Sequence[int]) -> int:
        """Return how many of the first `count` sequence numbers never arrived.

        The numbers in `except_for` are not counted.
        """
        wanted = (1 << count) - 1
        for sequence in except_for:
            wanted &= ~(1 << sequence)
        return (wanted & ~int.from_bytes(self._bits[producer], "little")).bit_count()

    def encoded(self) -> dict[int, str]:
        return {number: base64.b64encode(bits).decode() for number, bits in self._bits.items()}


class _Producer:
    """Puts at the rate of the current phase, with at most `in_flight_max` messages in flight."""

    def __init__(self, duty: LoadTask, mq: tidegate.Client) -> None:
        self._duty = duty
        self._put = mq.put
        self._filler = secrets.token_bytes(duty.size_bytes - SIZE_BYTES_MIN)
        self._latency = Histogram()
        self._in_flight = 0
        self._room = asyncio.Event()
        self.outcome = LoadProcessResult()

    async def run(self) -> None:
        self.outcome.begun_ns = time.monotonic_ns()
        begun = time.monotonic()
        for phase in self._duty.phases:
            await asyncio.sleep(max(begun + phase.begin_s - time.monotonic(), 0.0))
            if phase.rate_per_s is None:
                await self._as_fast_as_it_goes(begun + phase.end_s)
            else:
                await self._paced(begun + phase.end_s, phase.rate_per_s)
        while self._in_flight:
            await self._wait_for_room()
        self.outcome.ended_ns = time.monotonic_ns()
        self.outcome.latency = self._latency.sparse()
        self.outcome.latency_max_s = self._latency.max_s

    async def _as_fast_as_it_goes(self, end: float) -> None:
        while time.monotonic() < end:
            while self._in_flight < self._duty.in_flight_max:
                self._put_one()
            await self._wait_for_room()

    async def _paced(self, end: float, rate_per_s: float) -> None:
        begun = time.monotonic()
        sent = 0
        while (now := time.monotonic()) < end:
            due = int((now - begun) * rate_per_s) + 1
            while sent < due and self._in_flight < self._duty.in_flight_max:
                self._put_one()
                sent += 1
            if sent < due:
                # The limit in flight was reached. Restart the schedule from now: a burst of late
                # messages would not be the offered rate.
                await self._wait_for_room()
                begun, sent = time.monotonic(), 0
            else:
                await asyncio.sleep(max(_TICK_S, begun + sent / rate_per_s - now))

    async def _wait_for_room(self) -> None:
        self._room.clear()
        await self._room.wait()

    def _put_one(self) -> None:
        sequence = self.outcome.put
        self.outcome.put += 1
        self._in_flight += 1
        sent_ns = time.monotonic_ns()
        payload = _HEAD.pack(self._duty.number, sequence, sent_ns) + self._filler
        confirmed = self._put(self._duty.queue, payload)
        confirmed.add_done_callback(lambda future: self._done(future, sequence, sent_ns))

    def _done(self, future: asyncio.Future[int], sequence: int, sent_ns: int) -> None:
        self._in_flight -= 1
        self._room.set()
        if future.cancelled() or future.exception() is not None:
            self.outcome.failed.append(sequence)
            return
        self.outcome.confirmed += 1
        self._latency.add((time.monotonic_ns() - sent_ns) / 1e9)


class _Consumer:
    """Handles and acknowledges one message at a time, with a pause of `service_s` for each."""

    def __init__(self, duty: LoadTask) -> None:
        self._service_s = duty.service_s
        self._seen = Sequences()
        self._latency = Histogram()
        self.outcome = LoadProcessResult()

    async def run(self, subscription: tidegate.Subscription) -> None:
        async for message in subscription:
            producer, sequence, sent_ns = _HEAD.unpack_from(message.payload)
            now_ns = time.monotonic_ns()
            self.outcome.begun_ns = self.outcome.begun_ns or now_ns
            self._latency.add((now_ns - sent_ns) / 1e9)
            self._seen.add(producer, sequence)
            self.outcome.handled += 1
            if self._service_s:
                await asyncio.sleep(self._service_s)
            self.outcome.ended_ns = time.monotonic_ns()
            message.ack()

    def finish(self) -> None:
        self.outcome.seen = self._seen.encoded()
        self.outcome.latency = self._latency.sparse()
        self.outcome.latency_max_s = self._latency.max_s


async def _do(duty: LoadTask) -> LoadProcessResult:
    loop = asyncio.get_running_loop()
    stdin = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    async with tidegate.connect(duty.url, name=duty.name) as mq:
        if duty.role == "produce":
            producer = _Producer(duty, mq)
            await _say_ready(stdin)
            await _until_done_or_alone(asyncio.create_task(producer.run()), stdin)
            return producer.outcome
        consumer = _Consumer(duty)
        async with mq.subscribe(duty.queue, prefetch=duty.prefetch) as subscription:
            handling = asyncio.create_task(consumer.run(subscription))
            await _say_ready(stdin)
            await _until_done_or_alone(handling, stdin)
            handling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await handling
        consumer.finish()
        return consumer.outcome


async def _say_ready(stdin: asyncio.StreamReader) -> None:
    print("ready", flush=True)
    if await stdin.readline() != b"go\n":
        raise SystemExit("called off")


async def _until_done_or_alone(work: asyncio.Task[None], stdin: asyncio.StreamReader) -> None:
    told = asyncio.create_task(stdin.readline())
    await asyncio.wait({work, told}, return_when=asyncio.FIRST_COMPLETED)
    if not work.done() and told.result() != b"stop\n":
        raise SystemExit("the process that started this one is gone")
    told.cancel()
    if work.done():
        work.result()


# The parent's side


class LoadProcesses:
    """The processes of one load, controlled over their standard input and output."""

    def __init__(self, complaints: IO[bytes] | None = None) -> None:
        # The file for their standard error; None: the parent's.
        self._complaints = complaints
        self._processes: list[tuple[LoadTask, asyncio.subprocess.Process]] = []

    async def start(self, duties: Sequence[LoadTask]) -> None:
        """Start the processes; return when all are connected and the consumers are subscribed.

        `LoadFailed` means that a process ended before it was ready.
        """
        for duty in duties:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tidegate_lab.loadgen.load"),
                msgspec.json.encode(duty).decode(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=self._complaints,
                # A result is one line, and its bitmaps can be large.
                limit=256 * 1024 * 1024,
                # Only the parent handles Ctrl-C; it then ends its children.
                start_new_session=True,
            )
            self._processes.append((duty, process))
        async with asyncio.timeout(_START_S_MAX):
            for _, process in self._processes:
                assert process.stdout is not None
                if await process.stdout.readline() != b"ready\n":
                    raise LoadFailed("a process of the load did not start; it said why above")

    def go(self) -> None:
        """Tell all processes to begin."""
        self._tell(b"go\n", ("produce", "consume"))

    async def produced(self) -> list[tuple[LoadTask, LoadProcessResult]]:
        """Wait for the producers and return their results."""
        return await self._outcomes("produce")

    async def consumed(self) -> list[tuple[LoadTask, LoadProcessResult]]:
        """Stop the consumers and return their results."""
        self._tell(b"stop\n", ("consume",))
        return await self._outcomes("consume")

    def _tell(self, word: bytes, roles: Sequence[str]) -> None:
        for duty, process in self._processes:
            if duty.role in roles and process.stdin is not None:
                process.stdin.write(word)

    async def _outcomes(self, role: str) -> list[tuple[LoadTask, LoadProcessResult]]:
        outcomes = []
        for duty, process in self._processes:
            if duty.role == role:
                assert process.stdout is not None
                line = await process.stdout.readline()
                if not line:
                    raise LoadFailed(f"a process that should {role} died; it said why above")
                outcomes.append((duty, msgspec.json.decode(line, type=LoadProcessResult)))
        return outcomes

    async def end(self) -> None:
        """Kill all processes that still run."""
        for _, process in self._processes:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await process.wait()


@contextlib.asynccontextmanager
async def load_processes(
    duties: Sequence[LoadTask], complaints: IO[bytes] | None = None
) -> AsyncIterator[LoadProcesses]:
    """Yield load processes that are ready to begin, and end them when the block ends."""
    crew = LoadProcesses(complaints)
    try:
        await crew.start(duties)
        yield crew
    finally:
        await crew.end()


async def queues_drained(mq: tidegate.Client, queues: Sequence[str], seconds_max: float) -> bool:
    """Return whether the queues became empty, without unacknowledged messages, in time."""
    deadline = time.monotonic() + seconds_max
    while time.monotonic() < deadline:
        cluster = await mq.stats()
        found = [cluster.queue(name) for name in queues]
        if all(one is not None and not one.waiting + one.unacknowledged for one in found):
            return True
        await asyncio.sleep(0.05)
    return False


class LoadTotals(msgspec.Struct, frozen=True):
    """The totals of all processes of a load."""

    put: int
    confirmed: int
    handled: int
    repeated: int
    # Confirmed messages that no consumer handled: lost, unless they are still in the queue.
    unhandled: int
    put_per_s: float
    handled_per_s: float
    confirm: Durations
    handler: Durations


def count_messages(
    produced: Sequence[tuple[LoadTask, LoadProcessResult]],
    consumed: Sequence[tuple[LoadTask, LoadProcessResult]],
) -> LoadTotals:
    """Return the totals of a load, counted message by message."""
    sequences = Sequences()
    for _, outcome in consumed:
        sequences.add_all(outcome.seen)
    came_once = sum(outcome.handled for _, outcome in consumed)
    distinct = sum(
        outcome.put - sequences.missing(duty.number, outcome.put, ()) for duty, outcome in produced
    )
    makers = [outcome for _, outcome in produced]
    takers = [outcome for _, outcome in consumed if outcome.handled]
    return LoadTotals(
        put=sum(outcome.put for outcome in makers),
        confirmed=sum(outcome.confirmed for outcome in makers),
        handled=came_once,
        repeated=came_once - distinct,
        unhandled=sum(
            sequences.missing(duty.number, outcome.put, outcome.failed)
            for duty, outcome in produced
        ),
        put_per_s=_per_second([o.confirmed for o in makers], makers),
        handled_per_s=_per_second([o.handled for o in takers], takers),
        confirm=make_durations(_joined(makers)),
        handler=make_durations(_joined(takers)),
    )


def _per_second(counts: Sequence[int], outcomes: Sequence[LoadProcessResult]) -> float:
    if not outcomes:
        return 0.0
    first_ns = min(outcome.begun_ns for outcome in outcomes)
    last_ns = max(outcome.ended_ns for outcome in outcomes)
    return sum(counts) / max((last_ns - first_ns) / 1e9, 1e-9)


def _joined(outcomes: Sequence[LoadProcessResult]) -> Histogram:
    joined = Histogram()
    for outcome in outcomes:
        for upper_s, count in outcome.latency:
            # The middle of a bucket is about 4 % below its upper bound. The upper bound itself
            # could fall into the next bucket by a rounding error.
            middle_s = upper_s * 0.96
            joined.counts[bucket_of(middle_s)] += count
            joined.count += count
            joined.sum_s += middle_s * count
        joined.max_s = max(joined.max_s, outcome.latency_max_s)
    return joined


# The benchmark `tidegate bench run`


class LoadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `tidegate bench run`."""

    url: str
    # Messages per second of all producers together; None means as fast as possible.
    rate_per_s: float | None = None
    producers: int = 1
    consumers: int = 1
    prefetch: int = 2000
    size_bytes: int = 256
    seconds: float = 10.0
    in_flight_max: int = 1000
    durable: bool = True
    drain_s_max: float = 60.0

    def duties(self, queue: str) -> list[LoadTask]:
        """Return the task of each process, consumers first."""
        rate = None if self.rate_per_s is None else self.rate_per_s / max(self.producers, 1)
        consumers = [
            LoadTask(role="consume", url=self.url, queue=queue, prefetch=self.prefetch)
            for _ in range(self.consumers)
        ]
        return consumers + [
            LoadTask(
                role="produce",
                url=self.url,
                queue=queue,
                number=number,
                size_bytes=self.size_bytes,
                phases=[LoadPhase(0.0, self.seconds, rate)],
                in_flight_max=self.in_flight_max,
            )
            for number in range(self.producers)
        ]


class LoadReport(msgspec.Struct, frozen=True):
    """The report of `tidegate bench run`."""

    options: LoadOptions
    tally: LoadTotals
    # None if the queue was not empty at the end: unhandled messages may still be in it.
    lost: int | None

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON values, without the buckets of the histograms."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        for latency in ("confirm", "handler"):
            del plain["tally"][latency]["buckets"]
        return plain


def run_load(options: LoadOptions, progress: Progress = lambda line: None) -> LoadReport:
    """Run a load in a temporary queue of a node and return its report.

    `InvalidValue` means that `size_bytes` is too small for the head of a message. `LoadFailed`
    means that a process failed.
    """
    if options.size_bytes < SIZE_BYTES_MIN:
        raise InvalidValue(f"a message has at least {SIZE_BYTES_MIN} bytes here")
    return asyncio.run(_run_load(options, progress))


async def _run_load(options: LoadOptions, progress: Progress) -> LoadReport:
    queue = f"bench-{secrets.token_hex(4)}"
    async with tidegate.connect(options.url, reconnect_s=_RECONNECT_S) as mq:
        await mq.create_queue(queue, durable=options.durable)
        try:
            async with load_processes(options.duties(queue)) as crew:
                reporting = asyncio.create_task(_report_each_second(mq, queue, progress))
                try:
                    crew.go()
                    produced = await crew.produced()
                    empty = await queues_drained(
                        mq, [queue], options.drain_s_max if options.consumers else 0
                    )
                    consumed = await crew.consumed()
                finally:
                    reporting.cancel()
        finally:
            # With a timeout, because the node itself may be gone.
            with contextlib.suppress(TidegateError, TimeoutError):
                await asyncio.wait_for(mq.delete_queue(queue), _DELETE_S_MAX)
    found = count_messages(produced, consumed)
    return LoadReport(options, found, found.unhandled if empty else None)


async def _report_each_second(mq: tidegate.Client, queue: str, progress: Progress) -> None:
    begun = time.monotonic()
    while True:
        await asyncio.sleep(1.0)
        numbers = (await mq.stats(queue)).queue(queue)
        if numbers is not None:
            progress(
                f"{time.monotonic() - begun:.0f} s: in {numbers.put_per_s:,.0f}/s, "
                f"out {numbers.acked_per_s:,.0f}/s, waiting {numbers.waiting:,}, "
                f"unacknowledged {numbers.unacknowledged:,}"
            )


def render(report: LoadReport, console: Console) -> None:
    """Print the report as a table."""
    from rich.table import Table

    found = report.tally
    table = Table(title="Load")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in (
        ("put", f"{found.put:,}"),
        ("confirmed", f"{found.confirmed:,}"),
        ("handled", f"{found.handled:,}"),
        ("lost", "not known: still waiting" if report.lost is None else f"{report.lost:,}"),
        ("repeated", f"{found.repeated:,}"),
        ("confirmed a second", f"{found.put_per_s:,.0f}"),
        ("handled a second", f"{found.handled_per_s:,.0f}"),
        ("put to confirm p50 / p99", f"{found.confirm.p50_ms:.2f} / {found.confirm.p99_ms:.2f} ms"),
        ("put to handler p50 / p99", f"{found.handler.p50_ms:.2f} / {found.handler.p99_ms:.2f} ms"),
    ):
        table.add_row(name, value)
    console.print(table)
    offered = report.options.rate_per_s
    if offered is not None and found.put_per_s < 0.98 * offered:
        console.print(f"offered were {offered:,.0f} a second: the node could not keep up")


if __name__ == "__main__":
    import uvloop

    print(
        msgspec.json.encode(
            uvloop.run(_do(msgspec.json.decode(sys.argv[1], type=LoadTask)))
        ).decode()
    )
