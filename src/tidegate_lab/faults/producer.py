"""A producer process that puts numbered messages and records every put in a history.

    python -m tidegate_lab.faults.producer --url … --queue … --name … --history …

Several tasks put at the same time, and each waits for the answer to its put. Numbers are assigned
in the order of the puts, so that the checker can compare the order of the queue with them.

With `--groups N`, each of the first N tasks puts to a message group of its own, with a producer
name and numbers of its own. With `--dedup-every N`, every N-th message outside of groups has a
dedup id. The producer puts it a second time after the confirmation, as a client would that did not
receive it. At SIGTERM the tasks start no more puts and wait for the pending ones. A put that
has no answer after `PATIENCE_S` is recorded as unknown.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import uvloop

import tidegate
from tidegate.client.message import PutOptions
from tidegate.core.errors import CallerError, LimitReached, TidegateError
from tidegate.demo.history import HistoryWriter, numbered_payload

FLUSH_S = 0.05
# Longer than any outage that a run causes; a put without an answer after it counts as unknown.
PATIENCE_S = 60.0


@asynccontextmanager
async def patient_client(url: str, name: str) -> AsyncIterator[tidegate.Client]:
    """Connect as soon as a node answers; the run may kill nodes while this process starts."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while True:
        connecting = tidegate.connect(url, name=name, reconnect_s=PATIENCE_S)
        try:
            mq = await connecting.__aenter__()
            break
        except tidegate.Unavailable:
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(FLUSH_S)
    try:
        yield mq
    finally:
        await mq.close()


async def produce(
    url: str,
    queue: str,
    name: str,
    history: HistoryWriter,
    *,
    tasks: int,
    rate_per_s: float,
    stop: asyncio.Event,
    limit: int | None = None,
    groups: int = 0,
    dedup_every: int = 0,
) -> int:
    """Put until `stop` is set or `limit` is reached, and return the number of puts.

    `limit` None and `rate_per_s` 0 mean unlimited; `dedup_every` 0 means no dedup ids.
    """
    loop = asyncio.get_running_loop()
    numbers: dict[str, Iterator[int]] = {}
    put = 0

    async with patient_client(url, name) as mq:

        async def put_next(group: str | None) -> None:
            nonlocal put
            stream = name if group is None else f"{name}.{group}"
            seq = next(numbers.setdefault(stream, count(1)))
            payload = numbered_payload(stream, seq)
            options: PutOptions = {}
            if group is not None:
                options["group"] = stream
            elif dedup_every and seq % dedup_every == 0:
                options["dedup_id"] = f"{stream}:{seq}"
            history.note("put", "invoke", queue, stream, seq, hash_of=payload)
            put += 1
            try:
                async with asyncio.timeout(PATIENCE_S):
                    message_id = await mq.put(queue, payload, **options)
                    if "dedup_id" in options:
                        await mq.put(queue, payload, **options)
            except (CallerError, LimitReached):
                history.note("put", "fail", queue, stream, seq)
            except (TidegateError, TimeoutError):
                history.note("put", "info", queue, stream, seq)
            else:
                history.note("put", "ok", queue, stream, seq, message_id=message_id)

        async def work(task: int) -> None:
            pause_s = tasks / rate_per_s if rate_per_s else 0.0
            group = f"g{task}" if task < groups else None
            while not stop.is_set() and (limit is None or put < limit):
                began = loop.time()
                await put_next(group)
                if pause_s:
                    await asyncio.sleep(max(began + pause_s - loop.time(), 0.0))

        flushing = asyncio.create_task(_flush_forever(history))
        await asyncio.gather(*map(work, range(tasks)))
        flushing.cancel()
    history.flush()
    return put


async def _flush_forever(history: HistoryWriter) -> None:
    while True:
        await asyncio.sleep(FLUSH_S)
        history.flush()


async def _run(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with HistoryWriter(options.history, options.name) as history:
        await produce(
            options.url,
            options.queue,
            options.name,
            history,
            tasks=options.tasks,
            rate_per_s=options.rate,
            stop=stop,
            limit=options.limit,
            groups=options.groups,
            dedup_every=options.dedup_every,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--queue", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--tasks", type=int, default=50)
    parser.add_argument("--rate", type=float, default=0.0, help="puts a second, 0: no limit")
    parser.add_argument("--limit", type=int, default=None, help="puts in all")
    parser.add_argument("--groups", type=int, default=0, help="tasks that put to a group each")
    parser.add_argument("--dedup-every", type=int, default=0, help="0: no dedup ids")
    uvloop.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
