"""Telesto's mix of clients (§5.2 of the report): one way, request–response pairs and pool.

    one way  5/9   put a counter for a random other client, take the next, add one, put it again
    pair     2/9   two clients: a request to the partner, whose reply adds one
    pool     2/9   half put requests for any client, half answer them

Each client has its own connection and one request in progress. A read either waits at the node for
a message, or polls with a retry delay as Telesto's clients did. The clients of a type share one
queue. Clients check each reply; a wrong counter fails the run.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Sequence

import msgspec

import tidegate
from tidegate.client.client import Client
from tidegate.client.message import Message
from tidegate.telemetry.meters import BUCKETS, Histogram, bucket_of

NINTHS = 9
ONE_WAY = "one-way"
PAIR = "pair"
POOL = "pool"
QUEUES = (ONE_WAY, PAIR, POOL)
REQUEST_TIMEOUT_S = 30.0


class MixOptions(msgspec.Struct, frozen=True):
    """The number of clients, and how they read."""

    clients: int = 90
    # `None` lets reads wait at the node. Otherwise they poll, and sleep this long after a miss.
    retry_delay_s: float | None = None
    # How long a read waits at the node before it counts as a miss.
    wait_s: float = 1.0
    # Every n-th read first asks without waiting. This shows the response times of hits and misses
    # without the wait for other clients. 0 means never.
    glance_every: int = 0
    durable: bool = True


class MixRole(msgspec.Struct, frozen=True):
    """The part of one client in the mix."""

    number: int
    kind: str
    # `partner` is the number of a pair's other client; `asks` is for pairs and the pool.
    partner: int | None = None
    asks: bool = False

    @property
    def serves(self) -> bool:
        """Whether the client answers others, and so must stop after them."""
        return self.kind != ONE_WAY and not self.asks


def roles_of(clients: int) -> list[MixRole]:
    """Return the roles of all clients, in the proportions of table 5.1."""
    if clients < NINTHS or clients % NINTHS:
        raise ValueError(f"the mix is made of ninths: {clients} clients are no multiple of 9")
    ninth = clients // NINTHS
    one_way = 5 * ninth
    roles = [MixRole(number, ONE_WAY) for number in range(one_way)]
    for first in range(one_way, one_way + 2 * ninth, 2):
        roles.append(MixRole(first, PAIR, partner=first + 1, asks=True))
        roles.append(MixRole(first + 1, PAIR, partner=first))
    pool = range(one_way + 2 * ninth, clients)
    roles += [MixRole(number, POOL, asks=position % 2 == 0) for position, number in enumerate(pool)]
    return roles


class CounterWrong(AssertionError):
    """A reply belongs to another request; the run is not valid."""


class MixClient:
    """A client that works until `stopping` is set."""

    def __init__(
        self, role: MixRole, options: MixOptions, client: Client, tally: ClientCounters
    ) -> None:
        self.role = role
        self._options = options
        self._mq = client
        self._tally = tally
        self._reads = 0
        self._random = random.Random(role.number)
        self.stopping = False

    async def run(self, client_ids: Sequence[int]) -> None:
        """Play the role; `client_ids` are the ids of all clients by number."""
        role = self.role
        if role.kind == ONE_WAY:
            others = [
                client_ids[other.number]
                for other in roles_of(len(client_ids))
                if other.kind == ONE_WAY and other.number != role.number
            ]
            await self._pass_on(others)
        elif role.asks:
            receiver = None if role.partner is None else client_ids[role.partner]
            await self._ask(role.kind, receiver)
        else:
            await self._serve(role.kind)

    # The three types

    async def _pass_on(self, others: Sequence[int]) -> None:
        counter = 0
        while not self.stopping:
            await self._put(ONE_WAY, counter, receiver=self._random.choice(others))
            message = await self._take(ONE_WAY)
            if message is None:
                return
            counter = int(message.payload) + 1

    async def _ask(self, queue: str, receiver: int | None) -> None:
        counter = 0
        while not self.stopping:
            if self._options.retry_delay_s is None:
                reply: Message | None = await self._request(queue, counter, receiver)
            else:
                context = self._random.getrandbits(62)
                await self._put(queue, counter, receiver=receiver, context=context)
                reply = await self._take(queue, context=context)
            if reply is None:
                return
            if int(reply.payload) != counter + 1:
                raise CounterWrong(f"{queue}: {counter} was answered by {reply.payload!r}")
            counter = int(reply.payload) + 1

    async def _serve(self, queue: str) -> None:
        while True:
            message = await self._take(queue)
            if message is None:
                return
            began = time.perf_counter()
            await self._mq.reply(message, b"%d" % (int(message.payload) + 1))
            self._tally.put(time.perf_counter() - began)

    # The requests, each measured

    async def _put(
        self, queue: str, counter: int, *, receiver: int | None, context: int | None = None
    ) -> None:
        began = time.perf_counter()
        await self._mq.put(queue, b"%d" % counter, receiver=receiver, context=context)
        self._tally.put(time.perf_counter() - began)

    async def _request(self, queue: str, counter: int, receiver: int | None) -> Message:
        began = time.perf_counter()
        reply = await self._mq.request(
            queue, b"%d" % counter, receiver=receiver, timeout=REQUEST_TIMEOUT_S
        )
        self._tally.request(time.perf_counter() - began)
        return reply

    async def _take(self, queue: str, context: int | None = None) -> Message | None:
        """Return the next message for this client, or `None` after a miss when it is stopping."""
        options = self._options
        self._reads += 1
        at_once = options.retry_delay_s is not None or (
            options.glance_every > 0 and self._reads % options.glance_every == 0
        )
        while True:
            began = time.perf_counter()
            try:
                message = await self._mq.get(
                    queue, context=context, wait=0.0 if at_once else options.wait_s
                )
            except _MISSES:
                self._tally.miss(time.perf_counter() - began, waited=not at_once)
                if self.stopping:
                    return None
                if options.retry_delay_s is not None:
                    await asyncio.sleep(options.retry_delay_s)
                else:
                    at_once = False
                continue
            self._tally.hit(time.perf_counter() - began, waited=not at_once)
            return message


_MISSES = (tidegate.NoMessagesInQueue, tidegate.NoMessagesRetrieved)


# Counters of clients: messages, packets, and response times per type of request.
#
# A packet is an answer of the node, as in Telesto's metrics (§5.4 of the report). Counters only
# grow. The difference of two samples is a window; windows of several processes add up. Each second
# also leaves a row for the figures over time.


PUT = "put"
READ_HIT = "read hit"
READ_MISS = "read miss"
WAITING_READ = "waiting read"
REQUEST = "request"
TYPES = (PUT, READ_HIT, READ_MISS, WAITING_READ, REQUEST)
# Bins of one millisecond, as in figure 5.3; the last bin holds all longer times.
BIN_S = 1e-3
BINS = 1001


class Timing(msgspec.Struct):
    """Response times of one type: moments, buckets for percentiles, and bins for the figure."""

    count: int = 0
    sum_s: float = 0.0
    sum_of_squares: float = 0.0
    max_s: float = 0.0
    buckets: list[int] = msgspec.field(default_factory=lambda: [0] * BUCKETS)
    bins: list[int] = msgspec.field(default_factory=lambda: [0] * BINS)

    def add(self, duration_s: float) -> None:
        self.count += 1
        self.sum_s += duration_s
        self.sum_of_squares += duration_s * duration_s
        if duration_s > self.max_s:
            self.max_s = duration_s
        self.buckets[bucket_of(duration_s)] += 1
        self.bins[min(int(duration_s / BIN_S), BINS - 1)] += 1

    def plus(self, other: Timing, sign: int = 1) -> Timing:
        """Return the sum with `other`, or the difference if `sign` is −1.

        `max_s` is the larger of both in either case.
        """
        return Timing(
            count=self.count + sign * other.count,
            sum_s=self.sum_s + sign * other.sum_s,
            sum_of_squares=self.sum_of_squares + sign * other.sum_of_squares,
            max_s=max(self.max_s, other.max_s),
            buckets=[a + sign * b for a, b in zip(self.buckets, other.buckets, strict=True)],
            bins=[a + sign * b for a, b in zip(self.bins, other.bins, strict=True)],
        )

    @property
    def mean_s(self) -> float:
        return self.sum_s / self.count if self.count else 0.0

    @property
    def deviation_s(self) -> float:
        """The standard deviation."""
        if not self.count:
            return 0.0
        return math.sqrt(max(self.sum_of_squares / self.count - self.mean_s**2, 0.0))

    def percentile_s(self, fraction: float) -> float:
        histogram = Histogram()
        histogram.counts = self.buckets
        histogram.count = self.count
        histogram.max_s = self.max_s
        return histogram.percentile_s(fraction)


class SecondRow(msgspec.Struct):
    """One second of one process, or of all processes."""

    second: int
    messages: int = 0
    packets: int = 0
    # Type → number of requests, and the sum of their response times in seconds.
    responses: dict[str, tuple[int, float]] = msgspec.field(default_factory=dict)

    def plus(self, other: SecondRow) -> SecondRow:
        responses = dict(self.responses)
        for kind, (count, sum_s) in other.responses.items():
            before = responses.get(kind, (0, 0.0))
            responses[kind] = (before[0] + count, before[1] + sum_s)
        return SecondRow(
            self.second, self.messages + other.messages, self.packets + other.packets, responses
        )


class TallySample(msgspec.Struct):
    """All counters so far, and the rows of whole seconds since the last sample."""

    at_s: float
    puts: int = 0
    messages: int = 0
    packets: int = 0
    misses: int = 0
    timings: dict[str, Timing] = msgspec.field(default_factory=dict)
    rows: list[SecondRow] = msgspec.field(default_factory=list)


class CounterWindow(msgspec.Struct):
    """The events between two samples, in all processes."""

    seconds: float
    puts: int
    messages: int
    packets: int
    misses: int
    timings: dict[str, Timing]
    rows: list[SecondRow]

    @property
    def messages_per_s(self) -> float:
        return self.messages / self.seconds

    @property
    def packets_per_s(self) -> float:
        return self.packets / self.seconds

    @property
    def packets_per_message(self) -> float:
        return self.packets / self.messages if self.messages else math.nan

    def mean_ms(self, kind: str) -> float | None:
        timing = self.timings.get(kind)
        return 1e3 * timing.mean_s if timing is not None and timing.count else None


def window_of(before: list[TallySample], after: list[TallySample]) -> CounterWindow:
    """Return the sum over processes of the difference between their two samples."""
    pairs = list(zip(before, after, strict=True))
    timings: dict[str, Timing] = {}
    rows: dict[int, SecondRow] = {}
    for earlier, later in pairs:
        for kind, timing in later.timings.items():
            change = timing.plus(earlier.timings.get(kind, Timing()), -1)
            timings[kind] = timings[kind].plus(change) if kind in timings else change
        for row in later.rows:
            rows[row.second] = rows[row.second].plus(row) if row.second in rows else row
    return CounterWindow(
        # Processes answer within milliseconds of each other; the mean of their windows serves for
        # all.
        seconds=sum(later.at_s - earlier.at_s for earlier, later in pairs) / len(pairs),
        puts=sum(later.puts - earlier.puts for earlier, later in pairs),
        messages=sum(later.messages - earlier.messages for earlier, later in pairs),
        packets=sum(later.packets - earlier.packets for earlier, later in pairs),
        misses=sum(later.misses - earlier.misses for earlier, later in pairs),
        timings=timings,
        rows=[rows[second] for second in sorted(rows)],
    )


class ClientCounters:
    """The counters of one process's clients."""

    def __init__(self) -> None:
        self.puts = 0
        self.messages = 0
        self.packets = 0
        self.misses = 0
        self._timings = {kind: Timing() for kind in TYPES}
        self._rows: list[SecondRow] = []
        self._ticked = self._state()

    def put(self, duration_s: float) -> None:
        self.puts += 1
        self.packets += 1
        self._timings[PUT].add(duration_s)

    def hit(self, duration_s: float, *, waited: bool) -> None:
        self.messages += 1
        self.packets += 1
        self._timings[WAITING_READ if waited else READ_HIT].add(duration_s)

    def miss(self, duration_s: float, *, waited: bool) -> None:
        self.misses += 1
        self.packets += 1
        if not waited:
            self._timings[READ_MISS].add(duration_s)

    def request(self, duration_s: float) -> None:
        """Count a put and its reply, made by one call."""
        self.puts += 1
        self.messages += 1
        self.packets += 2
        self._timings[REQUEST].add(duration_s)

    def _state(self) -> SecondRow:
        return SecondRow(
            0,
            self.messages,
            self.packets,
            {kind: (timing.count, timing.sum_s) for kind, timing in self._timings.items()},
        )

    def tick(self, second: int) -> None:
        """End a second of the monotonic clock, which all processes share."""
        before, now = self._ticked, self._state()
        self._ticked = now
        self._rows.append(
            SecondRow(
                second,
                now.messages - before.messages,
                now.packets - before.packets,
                {
                    kind: (count - before.responses[kind][0], sum_s - before.responses[kind][1])
                    for kind, (count, sum_s) in now.responses.items()
                },
            )
        )

    def sample(self) -> TallySample:
        rows, self._rows = self._rows, []
        return TallySample(
            time.monotonic(),
            self.puts,
            self.messages,
            self.packets,
            self.misses,
            {kind: timing for kind, timing in self._timings.items() if timing.count},
            rows,
        )
