"""Producers and consumers in child processes, and samples of their queue.

A `ClientGroup` starts two child processes, one for producers and one for consumers. It connects
clients, starts and stops them, and samples their progress and the queue's stats, by default every
second. Clients work until they have handled their messages or are stopped. At the end the messages
put are compared with the messages taken and waiting, by number and by sum; a lost message fails the
run.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
import sys
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec
import uvloop

import tidegate
from tidegate.client.blocking import BlockingClient
from tidegate.client.puts import ProducerHandle
from tidegate.client.subscription import Subscription
from tidegate.core.topology import MemberRole, logical_name
from tidegate.telemetry.stats import QueueStats
from tidegate_lab.loadgen.processes import Child, answer
from tidegate_lab.report import ExperimentFailed

ANSWER_TIMEOUT_S = 60.0
# The node's stats lag behind the last acknowledgement.
EMPTY_TIMEOUT_S = 10.0

Answer = TypeVar("Answer")


class ReplicaRow(msgspec.Struct, frozen=True):
    """Stats of one replica at one time; totals count from its creation."""

    name: str
    put: int
    acked: int
    waiting: int
    unacknowledged: int


class QueueTotalsRow(msgspec.Struct, frozen=True):
    """A sample of the queue and its clients; totals count from the start of the group."""

    # Seconds since `begin`.
    at_s: float
    # Messages confirmed to producers, and messages acknowledged by consumers.
    produced: int
    consumed: int
    waiting: int
    unacknowledged: int
    clients: int
    replicas: list[ReplicaRow] = []
    # Producers and consumers at work, by number of the replica they use.
    producers_at: dict[int, int] = {}
    consumers_at: dict[int, int] = {}


class ClientGroup:
    """The clients of one queue, controlled by the parent process."""

    def __init__(
        self, children: dict[MemberRole, Child], control: BlockingClient, queue: str
    ) -> None:
        self._children = children
        self._control = control
        self._queue = queue
        self._seats: dict[int, ClientSpec] = {}
        self._began_s = time.monotonic()
        self.rows: list[QueueTotalsRow] = []

    # Clients

    def come(self, seats: Iterable[ClientSpec]) -> None:
        """Connect clients, one after another."""
        for seat in seats:
            self._seats[seat.number] = seat
            self._ask(seat.role, ConnectClients(seat), bool)

    def go(self, numbers: Iterable[int] | None = None) -> None:
        """Start clients; `None` starts all."""
        chosen = list(self._seats if numbers is None else numbers)
        for role in MemberRole:
            mine = [number for number in chosen if self._seats[number].role is role]
            if mine:
                self._ask(role, StartClients(mine), bool)

    def leave(self, numbers: Iterable[int] | None = None) -> None:
        """Stop clients, producers first; `None` stops all.

        Each client finishes the message that it is handling.
        """
        chosen = list(self._seats if numbers is None else numbers)
        seats = [self._seats.pop(number) for number in chosen]
        for role in (MemberRole.PRODUCER, MemberRole.CONSUMER):
            mine = [seat.number for seat in seats if seat.role is role]
            if mine:
                self._ask(role, StopClients(mine), list[ClientStatus])

    def standings(self) -> list[ClientStatus]:
        return [
            standing
            for role in MemberRole
            for standing in self._ask(role, ReportStatus(), list[ClientStatus])
        ]

    def _ask(self, role: MemberRole, order: Order, kind: type[Answer]) -> Answer:
        child = self._children[role]
        child.say(order)
        return child.hear(kind, ANSWER_TIMEOUT_S)

    # Sampling

    def begin(self) -> None:
        """Discard all samples, and take the first one at second 0."""
        self.rows = []
        self._began_s = time.monotonic()
        self.look()

    def watch(self, seconds: float, every_s: float = 1.0) -> None:
        """Take a sample every `every_s` for `seconds`."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 1e-3:
            time.sleep(min(every_s, left_s))
            self.look()

    def watch_until_done(self, seconds_max: float, every_s: float = 1.0) -> bool:
        """Take samples until every client has handled its messages; return false on timeout."""
        end_s = time.monotonic() + seconds_max
        while time.monotonic() < end_s:
            time.sleep(every_s)
            self.look()
            if all(standing.ended_s is not None for standing in self.standings()):
                return True
        return False

    def look(self) -> QueueTotalsRow:
        """Take a sample and append it to `rows`; raise if a child process has failed."""
        for child in self._children.values():
            child.check()
        replicas = self.replicas()
        # Take both totals from the clients, which know the messages that are committed.
        standings = self.standings()
        row = QueueTotalsRow(
            at_s=time.monotonic() - self._began_s,
            produced=_done(standings, MemberRole.PRODUCER),
            consumed=_done(standings, MemberRole.CONSUMER),
            waiting=sum(numbers.waiting for numbers in replicas),
            unacknowledged=sum(numbers.unacknowledged for numbers in replicas),
            clients=sum(
                standing.begun_s is not None and standing.ended_s is None for standing in standings
            ),
            replicas=[
                ReplicaRow(one.name, one.put, one.acked, one.waiting, one.unacknowledged)
                for one in replicas
            ],
            producers_at=_places(standings, MemberRole.PRODUCER),
            consumers_at=_places(standings, MemberRole.CONSUMER),
        )
        self.rows.append(row)
        return row

    def replicas(self) -> list[QueueStats]:
        """Return the stats of the queue, or of a logical queue's alias and replicas."""
        return sorted(
            (
                one
                for node in self._control.stats().nodes
                for one in node.queues
                if logical_name(one.name) == self._queue
            ),
            key=lambda one: one.name,
        )

    # Accounting

    def settle(self) -> MessageBalance:
        """Compare messages put with messages taken and waiting, after all clients have left.

        Raise `ExperimentFailed` if a message was lost, or was delivered twice without the
        redelivered flag.
        """
        put = self._ask(MemberRole.PRODUCER, ReportTotals(), MessageBalance)
        taken = self._ask(MemberRole.CONSUMER, ReportTotals(), MessageBalance)
        left = self._left_over(put.distinct - taken.distinct)
        if put.distinct != taken.distinct + left or (left == 0 and put.total != taken.total):
            raise ExperimentFailed(
                f"{put.distinct} messages were put, {taken.distinct} different ones taken and "
                f"{left} are left in {self._queue!r}: {put.distinct - taken.distinct - left} lost"
            )
        if taken.unflagged:
            raise ExperimentFailed(f"{taken.unflagged} messages came twice and did not say so")
        return taken

    def _left_over(self, expected: int) -> int:
        end_s = time.monotonic() + EMPTY_TIMEOUT_S
        while True:
            left = sum(one.waiting + one.unacknowledged for one in self.replicas())
            if left == expected or time.monotonic() > end_s:
                return left
            time.sleep(0.05)


def _done(standings: Sequence[ClientStatus], role: MemberRole) -> int:
    return sum(standing.done for standing in standings if standing.role is role)


def _places(standings: Sequence[ClientStatus], role: MemberRole) -> dict[int, int]:
    return dict(
        Counter(
            standing.replica
            for standing in standings
            if standing.role is role and standing.replica is not None
        )
    )


@contextlib.contextmanager
def client_group(control: BlockingClient, queue: str) -> Iterator[ClientGroup]:
    """Yield a group of two processes without clients."""
    with contextlib.ExitStack() as stack:
        children = {
            role: stack.enter_context(Child("tidegate_lab.papers.replicated.crew"))
            for role in MemberRole
        }
        for child in children.values():
            child.hear(str, ANSWER_TIMEOUT_S)
        yield ClientGroup(children, control, queue)


def client_specs(
    producers: int,
    consumers: int,
    *,
    url: str,
    queue: str,
    put_each: int | None = None,
    take_each: int | None = None,
) -> list[ClientSpec]:
    """Return clients of a plain queue, consumers first, so that they wait for the messages."""
    roles = [MemberRole.CONSUMER] * consumers + [MemberRole.PRODUCER] * producers
    return [
        ClientSpec(number, role, url, queue, put_each if role is MemberRole.PRODUCER else take_each)
        for number, role in enumerate(roles)
    ]


# A child process with clients: `python -m tidegate_lab.papers.replicated.crew`.
#
# The parent (`crew`) writes commands to its standard input, one JSON line each, and reads one
# answer per command. The process ends when its input closes.
#
# Each client has a connection of its own and one message in progress. A producer waits until its
# message is committed before it puts the next. A consumer waits until its acknowledgement is
# committed before it handles the next. Producers and consumers run in different processes, so that
# each process knows exactly what it put or took, and the parent can compare the two.


# Messages are pushed ahead, so that a consumer need not request each; it handles one at a time.
PREFETCH = 10


class ClientSpec(msgspec.Struct, frozen=True):
    """A client: its role, its node and queue, and how many messages it handles."""

    number: int
    role: MemberRole
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


class ConnectClients(msgspec.Struct, frozen=True, tag=True):
    """Connect a client; a consumer also subscribes."""

    seat: ClientSpec


class StartClients(msgspec.Struct, frozen=True, tag=True):
    """Let clients begin to work."""

    numbers: list[int]


class ReportStatus(msgspec.Struct, frozen=True, tag=True):
    """Report the status of all clients."""


class StopClients(msgspec.Struct, frozen=True, tag=True):
    """Let clients finish their current message, and disconnect them."""

    numbers: list[int]


class ReportTotals(msgspec.Struct, frozen=True, tag=True):
    """Report the totals of this process."""


Order = ConnectClients | StartClients | ReportStatus | StopClients | ReportTotals


class ClientStatus(msgspec.Struct, frozen=True):
    """The progress of one client, with times of the monotonic clock that all processes share."""

    number: int
    role: MemberRole
    done: int
    begun_s: float | None
    ended_s: float | None
    # The replica it uses now, for a logical queue.
    replica: int | None = None


class MessageBalance(msgspec.Struct, frozen=True):
    """Totals of a process: different messages, the sum of their numbers, and repetitions."""

    distinct: int
    total: int
    repeated: int
    # Repeated messages that were not flagged as redelivered.
    unflagged: int = 0


class MessageLedger:
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

    def balance(self) -> MessageBalance:
        return MessageBalance(len(self._known), sum(self._known), self._repeated, self._unflagged)


class LoadClient:
    """A client at work."""

    def __init__(self, seat: ClientSpec, mq: tidegate.Client, ledger: MessageLedger) -> None:
        self.seat = seat
        self._mq = mq
        self._ledger = ledger
        self.done = 0
        self.begun_s: float | None = None
        self.ended_s: float | None = None
        self._next_s = 0.0
        self.leaving = asyncio.Event()
        self.subscription: Subscription | None = None
        self.producer: ProducerHandle | None = None

    async def work(self) -> None:
        self.begun_s = time.monotonic()
        if self.seat.role is MemberRole.PRODUCER:
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

    def standing(self) -> ClientStatus:
        return ClientStatus(
            self.seat.number, self.seat.role, self.done, self.begun_s, self.ended_s, self._replica()
        )

    def _replica(self) -> int | None:
        if self.ended_s is not None:
            return None
        if self.seat.role is MemberRole.CONSUMER:
            return None if self.subscription is None else self.subscription.replica
        return None if self.producer is None else self.producer.replica


class ClientGroupProcess:
    """The clients of this process, controlled by the parent."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._ledger = MessageLedger()
        self._workers: dict[int, LoadClient] = {}
        self._go: dict[int, asyncio.Event] = {}
        self._running: dict[int, asyncio.Task[None]] = {}

    async def obey(self, order: Order) -> object:
        """Execute a command of the parent, and return the answer."""
        match order:
            case ConnectClients(seat):
                return await self._come(seat)
            case StartClients(numbers):
                for number in numbers:
                    self._go[number].set()
                return True
            case ReportStatus():
                return [worker.standing() for worker in self._workers.values()]
            case StopClients(numbers):
                for number in numbers:
                    self._workers[number].leaving.set()
                    self._go[number].set()
                await asyncio.gather(*(self._running[number] for number in numbers))
                return [self._workers[number].standing() for number in numbers]
            case ReportTotals():
                return self._ledger.balance()

    def abandon(self) -> None:
        """Cancel all clients, because the parent has gone."""
        for task in self._running.values():
            task.cancel()

    async def _come(self, seat: ClientSpec) -> bool:
        here: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._go[seat.number] = asyncio.Event()
        self._running[seat.number] = self._tasks.create_task(self._stay(seat, here))
        return await here

    async def _stay(self, seat: ClientSpec, here: asyncio.Future[bool]) -> None:
        async with self._at_the_queue(seat) as worker:
            self._workers[seat.number] = worker
            here.set_result(True)
            await self._go[seat.number].wait()
            await worker.work()

    @contextlib.asynccontextmanager
    async def _at_the_queue(self, seat: ClientSpec) -> AsyncIterator[LoadClient]:
        async with tidegate.connect(seat.url) as mq:
            worker = LoadClient(seat, mq, self._ledger)
            if seat.role is MemberRole.CONSUMER:
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
        crew = ClientGroupProcess(tasks)
        while line := await parent.readline():
            answer(await crew.obey(msgspec.json.decode(line, type=Order)))
        crew.abandon()


# A payload of 1 KiB: 4 bytes producer, 4 bytes sequence number, filler, CRC-32.


PAYLOAD_BYTES = 1024
_HEAD = struct.Struct("<II")
_CRC = struct.Struct("<I")
_FILLER = random.Random(7411).randbytes(PAYLOAD_BYTES - _HEAD.size - _CRC.size)


class PayloadDamaged(AssertionError):
    """A message was damaged."""


def make_payload(producer: int, sequence: int) -> bytes:
    body = _HEAD.pack(producer, sequence) + _FILLER
    return body + _CRC.pack(zlib.crc32(body))


def identity_of(payload: bytes) -> int:
    """Return producer and sequence number as one number.

    Raise `PayloadDamaged` if the length or the CRC is wrong.
    """
    if len(payload) != PAYLOAD_BYTES or _CRC.unpack(payload[-4:])[0] != zlib.crc32(payload[:-4]):
        raise PayloadDamaged(f"a message of {len(payload)} bytes came damaged")
    producer, sequence = _HEAD.unpack_from(payload)
    return int(producer) << 32 | int(sequence)


if __name__ == "__main__":
    uvloop.run(work())
