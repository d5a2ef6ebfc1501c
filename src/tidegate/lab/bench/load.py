"""Load on a running node: producers and consumers as processes of their own, and what came of it.

Strategy: every message carries its producer's number, its sequence and when it was put, so that
the far end knows which came, which came twice, and how long each took (one monotonic clock for
all processes of a machine). Producers put through the public API, a future per message, open loop
at a rate or as many in flight as allowed. What was confirmed and never handled is lost; it is
counted, not assumed. Needs nothing beyond what Tidegate itself needs.

A member of the crew is `python -m tidegate.lab.bench.load <duty as JSON>`. It says `ready`, works
from `go` on, a consumer until `stop`, and prints its outcome as its last line. When its stdin ends
without that, whoever started it is gone, and it ends as well.
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
from tidegate.telemetry.histogram import Histogram, bucket_of
from tidegate.telemetry.numbers import Durations, durations

if TYPE_CHECKING:
    from rich.console import Console

_HEAD = struct.Struct("<IQq")
SIZE_BYTES_MIN = _HEAD.size
_TICK_S = 0.002
_START_S_MAX = 20.0
# A node may be started again meanwhile; one that has gone for good ends the load.
_RECONNECT_S = 15.0
_DELETE_S_MAX = 5.0

Progress = Callable[[str], None]


class LoadFailed(TidegateError):
    """A member of the crew did not do its work."""

    name = "LOAD_FAILED"


# What one process does, and what it found


class Phase(msgspec.Struct, frozen=True):
    """A stretch of time at one rate; no rate is as fast as it goes."""

    begin_s: float
    end_s: float
    rate_per_s: float | None = None


class Duty(msgspec.Struct, frozen=True, kw_only=True):
    """One process's share."""

    role: Literal["produce", "consume"]
    url: str
    queue: str
    name: str | None = None
    # Of a producer
    number: int = 0
    size_bytes: int = 256
    phases: Sequence[Phase] = ()
    in_flight_max: int = 1000
    # Of a consumer
    prefetch: int = 200
    service_s: float = 0.0


class Outcome(msgspec.Struct, kw_only=True):
    """What one process did."""

    put: int = 0
    confirmed: int = 0
    # Sequences whose put failed: whether they are stored is not known.
    failed: list[int] = []
    begun_ns: int = 0
    ended_ns: int = 0
    handled: int = 0
    # A bit for each sequence that came, by producer, base64.
    seen: dict[int, str] = {}
    # From put to confirm, or from put to the handler: upper bound in seconds and count.
    latency: list[tuple[float, int]] = []
    latency_max_s: float = 0.0


class Sequences:
    """Which sequences of each producer have come."""

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
        """Join what another process has seen; what both saw came twice."""
        for producer, text in seen.items():
            theirs = int.from_bytes(base64.b64decode(text), "little")
            ours = int.from_bytes(self._bits[producer], "little")
            self.repeats += (ours & theirs).bit_count()
            joined = ours | theirs
            self._bits[producer] = bytearray(
                joined.to_bytes(joined.bit_length() // 8 + 1, "little")
            )

    def missing(self, producer: int, count: int, except_for: Sequence[int]) -> int:
        """How many of the first `count` sequences never came."""
        wanted = (1 << count) - 1
        for sequence in except_for:
            wanted &= ~(1 << sequence)
        return (wanted & ~int.from_bytes(self._bits[producer], "little")).bit_count()

    def encoded(self) -> dict[int, str]:
        return {number: base64.b64encode(bits).decode() for number, bits in self._bits.items()}


class _Producer:
    """Puts at the rate of the phase, never more in flight than allowed."""

    def __init__(self, duty: Duty, mq: tidegate.Client) -> None:
        self._duty = duty
        self._put = mq.put
        self._filler = secrets.token_bytes(duty.size_bytes - SIZE_BYTES_MIN)
        self._latency = Histogram()
        self._in_flight = 0
        self._room = asyncio.Event()
        self.outcome = Outcome()

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
                # Held up: the rate counts from now on, nobody catches up in a burst.
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
    """Handles and acknowledges message by message, each as slowly as its duty says."""

    def __init__(self, duty: Duty) -> None:
        self._service_s = duty.service_s
        self._seen = Sequences()
        self._latency = Histogram()
        self.outcome = Outcome()

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


async def _do(duty: Duty) -> Outcome:
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


# The crew, from outside


class Crew:
    """The processes of one load."""

    def __init__(self, complaints: IO[bytes] | None = None) -> None:
        # Where their stderr goes; None is ours.
        self._complaints = complaints
        self._processes: list[tuple[Duty, asyncio.subprocess.Process]] = []

    async def start(self, duties: Sequence[Duty]) -> None:
        """Start them, and return when all are connected and, if they consume, subscribed."""
        for duty in duties:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tidegate.lab.bench.load"),
                msgspec.json.encode(duty).decode(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=self._complaints,
                # Outcomes are one line, however much was seen.
                limit=256 * 1024 * 1024,
                # Ctrl-C is for the one who leads.
                start_new_session=True,
            )
            self._processes.append((duty, process))
        async with asyncio.timeout(_START_S_MAX):
            for _, process in self._processes:
                assert process.stdout is not None
                if await process.stdout.readline() != b"ready\n":
                    raise LoadFailed("a process of the load did not start; it said why above")

    def go(self) -> None:
        """Everybody begins."""
        self._tell(b"go\n", ("produce", "consume"))

    async def produced(self) -> list[tuple[Duty, Outcome]]:
        """What the producers did, once they are through."""
        return await self._outcomes("produce")

    async def consumed(self) -> list[tuple[Duty, Outcome]]:
        """Stop the consumers, and hear what they did."""
        self._tell(b"stop\n", ("consume",))
        return await self._outcomes("consume")

    def _tell(self, word: bytes, roles: Sequence[str]) -> None:
        for duty, process in self._processes:
            if duty.role in roles and process.stdin is not None:
                process.stdin.write(word)

    async def _outcomes(self, role: str) -> list[tuple[Duty, Outcome]]:
        outcomes = []
        for duty, process in self._processes:
            if duty.role == role:
                assert process.stdout is not None
                line = await process.stdout.readline()
                if not line:
                    raise LoadFailed(f"a process that should {role} died; it said why above")
                outcomes.append((duty, msgspec.json.decode(line, type=Outcome)))
        return outcomes

    async def end(self) -> None:
        """Nobody is left, whatever happened."""
        for _, process in self._processes:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await process.wait()


@contextlib.asynccontextmanager
async def crew_of(
    duties: Sequence[Duty], complaints: IO[bytes] | None = None
) -> AsyncIterator[Crew]:
    """A crew that is ready to go, and gone afterwards."""
    crew = Crew(complaints)
    try:
        await crew.start(duties)
        yield crew
    finally:
        await crew.end()


async def drained(mq: tidegate.Client, queues: Sequence[str], seconds_max: float) -> bool:
    """Whether the queues became empty, nothing waiting and nothing in anybody's hands."""
    deadline = time.monotonic() + seconds_max
    while time.monotonic() < deadline:
        cluster = await mq.stats()
        found = [cluster.queue(name) for name in queues]
        if all(one is not None and not one.waiting + one.unacknowledged for one in found):
            return True
        await asyncio.sleep(0.05)
    return False


class Tally(msgspec.Struct, frozen=True):
    """What a crew did together."""

    put: int
    confirmed: int
    handled: int
    repeated: int
    # Confirmed and never handled: lost, unless it is still waiting.
    unhandled: int
    put_per_s: float
    handled_per_s: float
    confirm: Durations
    handler: Durations


def tally(
    produced: Sequence[tuple[Duty, Outcome]], consumed: Sequence[tuple[Duty, Outcome]]
) -> Tally:
    """Count it all, message by message."""
    sequences = Sequences()
    for _, outcome in consumed:
        sequences.add_all(outcome.seen)
    came_once = sum(outcome.handled for _, outcome in consumed)
    distinct = sum(
        outcome.put - sequences.missing(duty.number, outcome.put, ()) for duty, outcome in produced
    )
    makers = [outcome for _, outcome in produced]
    takers = [outcome for _, outcome in consumed if outcome.handled]
    return Tally(
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
        confirm=durations(_joined(makers)),
        handler=durations(_joined(takers)),
    )


def _per_second(counts: Sequence[int], outcomes: Sequence[Outcome]) -> float:
    if not outcomes:
        return 0.0
    first_ns = min(outcome.begun_ns for outcome in outcomes)
    last_ns = max(outcome.ended_ns for outcome in outcomes)
    return sum(counts) / max((last_ns - first_ns) / 1e9, 1e-9)


def _joined(outcomes: Sequence[Outcome]) -> Histogram:
    joined = Histogram()
    for outcome in outcomes:
        for upper_s, count in outcome.latency:
            # A little below its upper bound lies the middle of the bucket, on any machine.
            middle_s = upper_s * 0.96
            joined.counts[bucket_of(middle_s)] += count
            joined.count += count
            joined.sum_s += middle_s * count
        joined.max_s = max(joined.max_s, outcome.latency_max_s)
    return joined


# A benchmark of it


class LoadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `tidegate bench run` puts on a node."""

    url: str
    # All producers together; None is as fast as it goes.
    rate_per_s: float | None = None
    producers: int = 1
    consumers: int = 1
    prefetch: int = 2000
    size_bytes: int = 256
    seconds: float = 10.0
    in_flight_max: int = 1000
    durable: bool = True
    drain_s_max: float = 60.0

    def duties(self, queue: str) -> list[Duty]:
        """Each process's share, the consumers first."""
        rate = None if self.rate_per_s is None else self.rate_per_s / max(self.producers, 1)
        consumers = [
            Duty(role="consume", url=self.url, queue=queue, prefetch=self.prefetch)
            for _ in range(self.consumers)
        ]
        return consumers + [
            Duty(
                role="produce",
                url=self.url,
                queue=queue,
                number=number,
                size_bytes=self.size_bytes,
                phases=[Phase(0.0, self.seconds, rate)],
                in_flight_max=self.in_flight_max,
            )
            for number in range(self.producers)
        ]


class LoadReport(msgspec.Struct, frozen=True):
    """What `tidegate bench run` found."""

    options: LoadOptions
    tally: Tally
    # None when the queue was not empty in the end: what was not handled may still be there.
    lost: int | None

    def as_json(self) -> dict[str, Any]:
        """The report as plain JSON values, without the histograms' buckets."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        for latency in ("confirm", "handler"):
            del plain["tally"][latency]["buckets"]
        return plain


def run_load(options: LoadOptions, progress: Progress = lambda line: None) -> LoadReport:
    """Put load on a node for a while, in a queue of its own that is deleted afterwards."""
    if options.size_bytes < SIZE_BYTES_MIN:
        raise InvalidValue(f"a message has at least {SIZE_BYTES_MIN} bytes here")
    return asyncio.run(_run_load(options, progress))


async def _run_load(options: LoadOptions, progress: Progress) -> LoadReport:
    queue = f"bench-{secrets.token_hex(4)}"
    async with tidegate.connect(options.url, reconnect_s=_RECONNECT_S) as mq:
        await mq.create_queue(queue, durable=options.durable)
        try:
            async with crew_of(options.duties(queue)) as crew:
                reporting = asyncio.create_task(_report_each_second(mq, queue, progress))
                try:
                    crew.go()
                    produced = await crew.produced()
                    empty = await drained(
                        mq, [queue], options.drain_s_max if options.consumers else 0
                    )
                    consumed = await crew.consumed()
                finally:
                    reporting.cancel()
        finally:
            # Bounded: the node may be what has gone.
            with contextlib.suppress(TidegateError, TimeoutError):
                await asyncio.wait_for(mq.delete_queue(queue), _DELETE_S_MAX)
    found = tally(produced, consumed)
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
        msgspec.json.encode(uvloop.run(_do(msgspec.json.decode(sys.argv[1], type=Duty)))).decode()
    )
