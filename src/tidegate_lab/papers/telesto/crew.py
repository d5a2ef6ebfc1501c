"""The clients of a trial, in a few child processes.

Each process connects its clients and reports their ids. When the parent knows all ids, it sends
them to all processes, and the clients begin. At the end, the clients that ask stop before the
clients that answer, so that no request remains unanswered. Messages that were put and not taken
must then be in the queues; a lost message fails the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec
import uvloop

import tidegate
from tidegate.client.blocking import BlockingClient
from tidegate.telemetry.stats import ClusterStats
from tidegate_lab.loadgen.processes import Child, answer
from tidegate_lab.papers.telesto.mix import (
    QUEUES,
    ClientCounters,
    MixClient,
    MixOptions,
    MixRole,
    TallySample,
    roles_of,
)

PROCESSES = 2
CONNECT_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 30.0
LOOK_EVERY_S = 1.0

Answer = TypeVar("Answer")


class MixShare(msgspec.Struct, frozen=True):
    """The clients of one process."""

    urls: list[str]
    roles: list[MixRole]
    options: MixOptions


class MessagesLost(AssertionError):
    """Messages were put and not taken, and are not in the queues."""


class MixLoadGenerator:
    """The running clients, controlled by the parent process."""

    def __init__(self, children: Sequence[Child], control: BlockingClient) -> None:
        self._children = children
        self._control = control

    def sample(self) -> list[TallySample]:
        """Return the counters of each process."""
        return self._ask_all("sample", TallySample)

    def numbers(self) -> ClusterStats:
        """Return the stats of the nodes."""
        return self._control.stats()

    def work_for(self, seconds: float) -> None:
        """Wait while the clients work; raise if a child process has failed."""
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            time.sleep(min(left_s, LOOK_EVERY_S))
            for child in self._children:
                child.check()

    def stop(self) -> int:
        """Stop the clients, and return how many messages were left in the queues.

        Raise `MessagesLost` if messages are missing.
        """
        self._ask_all("rest", bool)
        ended = self._ask_all("end", TallySample)
        put = sum(sample.puts for sample in ended)
        taken = sum(sample.messages for sample in ended)
        left = sum(self._control.purge(queue) for queue in QUEUES)
        if put - taken != left:
            raise MessagesLost(f"{put} put, {taken} taken, {left} left: {put - taken - left} lost")
        return left

    def _ask_all(self, what: str, kind: type[Answer]) -> list[Answer]:
        for child in self._children:
            child.say(what)
        return [child.hear(kind, ANSWER_TIMEOUT_S) for child in self._children]


@contextlib.contextmanager
def running_mix(ports: Sequence[int], options: MixOptions) -> Iterator[MixLoadGenerator]:
    """Connect all clients to the nodes in turn, start them, and yield them."""
    urls = [f"tidegate://127.0.0.1:{port}" for port in ports]
    roles = roles_of(options.clients)
    with contextlib.ExitStack() as stack:
        controls = [stack.enter_context(tidegate.connect(url, mode="admin")) for url in urls]
        for position, queue in enumerate(QUEUES):
            # The node that creates a queue owns it, so this distributes the queues over the nodes.
            controls[position % len(controls)].create_queue(queue, durable=options.durable)
        children = [
            stack.enter_context(
                Child(
                    "tidegate_lab.papers.telesto.crew",
                    [
                        msgspec.json.encode(
                            MixShare(
                                urls, [r for r in roles if r.number % PROCESSES == part], options
                            )
                        ).decode()
                    ],
                )
            )
            for part in range(PROCESSES)
        ]
        ids: dict[int, int] = {}
        for child in children:
            ids.update(child.hear(dict[int, int], CONNECT_TIMEOUT_S))
        roster = [ids[number] for number in range(options.clients)]
        for child in children:
            child.say(roster)
        yield MixLoadGenerator(children, controls[0])


# A child process with clients: `python -m tidegate_lab.papers.telesto.crew <share as JSON>`.


CONNECTING_MAX = 20


async def work(share: MixShare) -> None:
    """Connect the clients, report their ids, run them, and execute the parent's commands."""
    parent = await _parent()
    tally = ClientCounters()
    connecting = asyncio.Semaphore(CONNECTING_MAX)
    async with contextlib.AsyncExitStack() as stack:

        async def connect(index: int) -> MixClient:
            role = share.roles[index]
            url = share.urls[role.number % len(share.urls)]
            async with connecting:
                mq = await stack.enter_async_context(tidegate.connect(url))
            ids[role.number] = mq.client_id
            return MixClient(role, share.options, mq, tally)

        ids: dict[int, int] = {}
        clients = await asyncio.gather(*(connect(index) for index in range(len(share.roles))))
        answer(ids)
        roster = msgspec.json.decode(await parent.readline(), type=list[int])
        async with asyncio.TaskGroup() as tasks:
            running = {client: tasks.create_task(client.run(roster)) for client in clients}
            ticking = tasks.create_task(_tick(tally))
            await _obey(parent, running, tally)
            ticking.cancel()


async def _parent() -> asyncio.StreamReader:
    """Return a reader of standard input that does not block the clients."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def _tick(tally: ClientCounters) -> None:
    while True:
        now = time.monotonic()
        second = math.floor(now)
        await asyncio.sleep(second + 1 - now)
        tally.tick(second)


async def _obey(
    parent: asyncio.StreamReader,
    running: dict[MixClient, asyncio.Task[None]],
    tally: ClientCounters,
) -> None:
    async def stop(serving: bool) -> None:
        chosen = [client for client in running if client.role.serves is serving]
        for client in chosen:
            client.stopping = True
        if chosen:
            await asyncio.wait([running[client] for client in chosen])

    while line := await parent.readline():
        match msgspec.json.decode(line, type=str):
            case "sample":
                answer(tally.sample())
            case "rest":
                await stop(serving=False)
                answer(True)
            case "end":
                await stop(serving=True)
                answer(tally.sample())
                return
    for task in running.values():
        task.cancel()


if __name__ == "__main__":
    uvloop.run(work(msgspec.json.decode(sys.argv[1], type=MixShare)))
