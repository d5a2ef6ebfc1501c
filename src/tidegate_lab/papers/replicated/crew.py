"""A child process with clients: `python -m tidegate.lab.replicated.crew_process`.

The parent (`crew`) writes commands to its standard input, one JSON line each, and reads one answer
per command. The process ends when its input closes.

Each client has a connection of its own and one message in progress. A producer waits until its
message is committed before it puts the next. A consumer waits until its acknowledgement is
committed before it handles the next. Producers and consumers run in different processes, so that
each process knows exactly what it put or took, and the parent can compare the two.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator

import msgspec
import uvloop

import tidegate
from tidegate.client.producer import Producer
from tidegate.client.subscription import Subscription
from tidegate.core.replication import Role
from tidegate.lab.bench.child import answer
from tidegate.lab.replicated.payload import identity_of, make_payload

# Messages are pushed ahead, so that a consumer need not request each; it handles one at a time.
PREFETCH = 10


class Seat(msgspec.Struct, frozen=True):
    """A client: its role, its node and queue, and how many messages it handles."""

    number: int
    role: Role
    url: str
    queue: str
    # `None` means until it is stopped.
    messages: int | None = None
    # True uses a transaction per message. False uses a confirmed put or acknowledgement: the same
    # commit through another packet, which the client can route to replicas.
    transactions: bool = True
    # The most messages per second; `None` means unlimited.
    rate_per_s: float | None = None
    # The number of the replica to use, for a logical queue; `None` lets the node elect one.
    replica: int | None = None


class Come(msgspec.Struct, frozen=True, tag=True):
    """Connect a client; a consumer also subscribes."""

    seat: Seat


class Go(msgspec.Struct, frozen=True, tag=True):
    """Let clients begin to work."""

    numbers: list[int]


class Look(msgspec.Struct, frozen=True, tag=True):
    """Report the status of all clients."""


class Leave(msgspec.Struct, frozen=True, tag=True):
    """Let clients finish their current message, and disconnect them."""

    numbers: list[int]


class Account(msgspec.Struct, frozen=True, tag=True):
    """Report the totals of this process."""


Order = Come | Go | Look | Leave | Account


class Standing(msgspec.Struct, frozen=True):
    """The progress of one client, with times of the monotonic clock that all processes share."""

    number: int
    role: Role
    done: int
    begun_s: float | None
    ended_s: float | None
    # The replica it uses now, for a logical queue.
    replica: int | None = None


class Balance(msgspec.Struct, frozen=True):
    """Totals of a process: different messages, the sum of their numbers, and repetitions."""

    distinct: int
    total: int
    repeated: int
    # Repeated messages that were not flagged as redelivered.
    unflagged: int = 0


class Ledger:
    """The messages that a process has put or taken."""

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._repeated = 0
        self._unflagged = 0

    def note(self, identity: int, *, flagged: bool = False) -> None:
        if identity in self._known:
            self._repeated += 1
            self._unflagged += not flagged
        self._known.add(identity)

    def balance(self) -> Balance:
        return Balance(len(self._known), sum(self._known), self._repeated, self._unflagged)


class Worker:
    """A client at work."""

    def __init__(self, seat: Seat, mq: tidegate.Client, ledger: Ledger) -> None:
        self.seat = seat
        self._mq = mq
        self._ledger = ledger
        self.done = 0
        self.begun_s: float | None = None
        self.ended_s: float | None = None
        self._next_s = 0.0
        self.leaving = asyncio.Event()
        self.subscription: Subscription | None = None
        self.producer: Producer | None = None

    async def work(self) -> None:
        self.begun_s = time.monotonic()
        if self.seat.role is Role.PRODUCER:
            await self._produce()
        else:
            await self._consume()
        self.ended_s = time.monotonic()

    async def _in_turn(self) -> bool:
        """Wait until the client's speed allows the next message; return false at the end."""
        if self.seat.rate_per_s is not None:
            interval_s = 1 / self.seat.rate_per_s
            # Do not catch up on lost time: the rate is a speed, not a load.
            self._next_s = max(self._next_s + interval_s, time.monotonic() - interval_s)
            wait_s = self._next_s - time.monotonic()
            if wait_s > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.leaving.wait(), wait_s)
        return not (self.leaving.is_set() or self.done == self.seat.messages)

    async def _produce(self) -> None:
        queue = self.seat.queue
        while await self._in_turn():
            payload = make_payload(self.seat.number, self.done)
            if self.seat.transactions:
                async with self._mq.transaction() as transaction:
                    transaction.put(queue, payload)
            else:
                assert self.producer is not None
                await self.producer.put(payload)
            self._ledger.note(self.seat.number << 32 | self.done)
            self.done += 1

    async def _consume(self) -> None:
        assert self.subscription is not None
        messages = aiter(self.subscription)
        leaving = asyncio.ensure_future(self.leaving.wait())
        coming: asyncio.Future[tidegate.Message] | None = None
        try:
            while await self._in_turn():
                coming = asyncio.ensure_future(anext(messages))
                await asyncio.wait([coming, leaving], return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    return
                message = coming.result()
                identity = identity_of(message.payload)
                if self.seat.transactions:
                    async with self._mq.transaction() as transaction:
                        transaction.ack(message)
                else:
                    await message.ack_confirmed()
                self._ledger.note(identity, flagged=message.redelivered)
                self.done += 1
        finally:
            leaving.cancel()
            if coming is not None and not coming.done():
                coming.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await coming

    def standing(self) -> Standing:
        return Standing(
            self.seat.number, self.seat.role, self.done, self.begun_s, self.ended_s, self._replica()
        )

    def _replica(self) -> int | None:
        if self.ended_s is not None:
            return None
        if self.seat.role is Role.CONSUMER:
            return None if self.subscription is None else self.subscription.replica
        return None if self.producer is None else self.producer.replica


class Crew:
    """The clients of this process, controlled by the parent."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._ledger = Ledger()
        self._workers: dict[int, Worker] = {}
        self._go: dict[int, asyncio.Event] = {}
        self._running: dict[int, asyncio.Task[None]] = {}

    async def obey(self, order: Order) -> object:
        """Execute a command of the parent, and return the answer."""
        match order:
            case Come(seat):
                return await self._come(seat)
            case Go(numbers):
                for number in numbers:
                    self._go[number].set()
                return True
            case Look():
                return [worker.standing() for worker in self._workers.values()]
            case Leave(numbers):
                for number in numbers:
                    self._workers[number].leaving.set()
                    self._go[number].set()
                await asyncio.gather(*(self._running[number] for number in numbers))
                return [self._workers[number].standing() for number in numbers]
            case Account():
                return self._ledger.balance()

    def abandon(self) -> None:
        """Cancel all clients, because the parent has gone."""
        for task in self._running.values():
            task.cancel()

    async def _come(self, seat: Seat) -> bool:
        here: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._go[seat.number] = asyncio.Event()
        self._running[seat.number] = self._tasks.create_task(self._stay(seat, here))
        return await here

    async def _stay(self, seat: Seat, here: asyncio.Future[bool]) -> None:
        async with self._at_the_queue(seat) as worker:
            self._workers[seat.number] = worker
            here.set_result(True)
            await self._go[seat.number].wait()
            await worker.work()

    @contextlib.asynccontextmanager
    async def _at_the_queue(self, seat: Seat) -> AsyncIterator[Worker]:
        async with tidegate.connect(seat.url) as mq:
            worker = Worker(seat, mq, self._ledger)
            if seat.role is Role.CONSUMER:
                async with mq.subscribe(
                    seat.queue, prefetch=PREFETCH, replica=seat.replica
                ) as subscription:
                    worker.subscription = subscription
                    yield worker
            elif seat.transactions:
                yield worker
            else:
                async with mq.producer(seat.queue, replica=seat.replica) as producer:
                    worker.producer = producer
                    yield worker


async def work() -> None:
    """Execute the parent's commands until its end of the pipe closes."""
    parent = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(parent), sys.stdin)
    answer("ready")
    async with asyncio.TaskGroup() as tasks:
        crew = Crew(tasks)
        while line := await parent.readline():
            answer(await crew.obey(msgspec.json.decode(line, type=Order)))
        crew.abandon()


if __name__ == "__main__":
    uvloop.run(work())
