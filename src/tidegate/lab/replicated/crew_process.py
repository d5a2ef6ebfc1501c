"""One process of a crew: `python -m tidegate.lab.replicated.crew_process`, ordered by its input.

Strategy: each client has a connection of its own and one message under way. A producer waits until
its message is committed before it makes the next; a consumer waits until its acknowledgement is
committed before it looks at the next. Who puts and who takes live in different processes, so that
what was put and what was taken is known exactly, message by message, and compared at the end.
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

# Pushed ahead, so that a consumer need not ask for each message; handled one at a time.
PREFETCH = 10


class Seat(msgspec.Struct, frozen=True):
    """One client: what it is, where it connects, and how many messages it handles."""

    number: int
    role: Role
    url: str
    queue: str
    # None: until it is told to end.
    messages: int | None = None
    # A transaction for each message; else a confirmed put or acknowledgement, which is the same
    # commit by another packet, and the one that a client splits over replicas.
    transactions: bool = True
    # At most so many a second: how fast this client is. None: as fast as it can.
    rate_per_s: float | None = None
    # The number of the replica that it is put to, of a logical queue; None: it is elected.
    replica: int | None = None


class Come(msgspec.Struct, frozen=True, tag=True):
    """Connect; a consumer also subscribes."""

    seat: Seat


class Go(msgspec.Struct, frozen=True, tag=True):
    """Begin to work."""

    numbers: list[int]


class Look(msgspec.Struct, frozen=True, tag=True):
    """Say how far everyone is."""


class Leave(msgspec.Struct, frozen=True, tag=True):
    """Let some finish the message that they have in hand, and go."""

    numbers: list[int]


class Account(msgspec.Struct, frozen=True, tag=True):
    """Say what was put or taken in all."""


Order = Come | Go | Look | Leave | Account


class Standing(msgspec.Struct, frozen=True):
    """How far one client is; times are of the clock that all processes share."""

    number: int
    role: Role
    done: int
    begun_s: float | None
    ended_s: float | None
    # Of a logical queue: the number of the replica that it is at.
    replica: int | None = None


class Balance(msgspec.Struct, frozen=True):
    """What a process has put, or taken: how many different messages, their sum, and repeats."""

    distinct: int
    total: int
    repeated: int
    # Of the repeated, those that were not flagged as delivered before.
    unflagged: int = 0


class Ledger:
    """Every message that a process has put or taken."""

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
        """Wait until its own speed allows the next message; False: it is done."""
        if self.seat.rate_per_s is not None:
            interval_s = 1 / self.seat.rate_per_s
            # What could not be done in its time is not made up for: this is a speed, not a load.
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
    """The clients of this process, as the parent orders them."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._ledger = Ledger()
        self._workers: dict[int, Worker] = {}
        self._go: dict[int, asyncio.Event] = {}
        self._running: dict[int, asyncio.Task[None]] = {}

    async def obey(self, order: Order) -> object:
        """Do as the parent says; what to answer."""
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
        """The parent is gone."""
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
    """Answer the parent until it hangs up."""
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
