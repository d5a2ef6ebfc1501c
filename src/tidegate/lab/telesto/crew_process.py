"""A child process with clients: `python -m tidegate.lab.telesto.crew_process <share as JSON>`."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import time

import msgspec
import uvloop

import tidegate
from tidegate.lab.bench.child import answer
from tidegate.lab.telesto.crew import Share
from tidegate.lab.telesto.mix import MixClient
from tidegate.lab.telesto.tally import Tally

CONNECTING_MAX = 20


async def work(share: Share) -> None:
    """Connect the clients, report their ids, run them, and execute the parent's commands."""
    parent = await _parent()
    tally = Tally()
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


async def _tick(tally: Tally) -> None:
    while True:
        now = time.monotonic()
        second = math.floor(now)
        await asyncio.sleep(second + 1 - now)
        tally.tick(second)


async def _obey(
    parent: asyncio.StreamReader, running: dict[MixClient, asyncio.Task[None]], tally: Tally
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
    uvloop.run(work(msgspec.json.decode(sys.argv[1], type=Share)))
