"""The spike behind decision 0001: ways to put a segment into PostgreSQL, measured.

    .venv/bin/python docs/decisions/spike_0001.py

Starts the embedded PostgreSQL in a temporary folder, creates the schema, and measures one
commit at a time: psycopg's cursors against libpq's pipeline mode, one message, two hundred
and a thousand to a segment; then what marks of producers cost inside the put.
"""

import asyncio
import tempfile
import time
from pathlib import Path

import psycopg
import uvloop

from tidegate.core.ports import Write
from tidegate.core.segment import Segment
from tidegate.storage.embedded import EmbeddedPostgres
from tidegate.storage.postgres import PostgresStore

REPEATS = 400
MESSAGE_BYTES = 256
CALL = (
    "select put_segment(%s::int, %s::bigint, %s::bigint, 5::smallint, 1.0::float8, %s::int[],"
    " %s::int[], null, null, null, %b, %s::bigint[], %s::bigint[])"
)


def report(name: str, times_s: list[float], messages: int) -> None:
    times_s.sort()
    p50, p99 = times_s[len(times_s) // 2], times_s[int(len(times_s) * 0.99)]
    rate = messages * len(times_s) / sum(times_s)
    figures = f"p50 {p50 * 1e6:7.0f} µs  p99 {p99 * 1e6:7.0f} µs  {rate:>9,.0f} msg/s"
    print(f"{name:<16} {messages:>5} messages  {figures}")


async def measure(url: str) -> None:
    store = PostgresStore(url)
    await store.open()
    queue = await store.create_queue("spike", True)
    assert queue is not None
    claim = await store.claim(queue.queue_id, await store.join("spike", "nowhere", 600.0))
    assert claim is not None
    next_id = 1
    cursors = await psycopg.AsyncConnection.connect(url, autocommit=True)
    loop = asyncio.get_running_loop()
    for messages in (1, 200, 1000):
        payload = bytes(MESSAGE_BYTES * messages)
        lengths = [MESSAGE_BYTES] * messages
        by_cursor, by_pipeline = [], []
        for turn in range(REPEATS):
            started = time.perf_counter()
            await cursors.execute(
                CALL,
                (queue.queue_id, claim.epoch, next_id, lengths, [1], payload, [1], [turn + 1]),
                prepare=True,
                binary=True,
            )
            by_cursor.append(time.perf_counter() - started)
            next_id += messages
            segment = Segment(
                queue_id=queue.queue_id,
                first_id=next_id,
                priority=5,
                arrived_at=1.0,
                lengths=lengths,
                payload=payload,
                senders=[1],
            )
            stored: asyncio.Future[object] = loop.create_future()
            started = time.perf_counter()
            store.submit([Write(segment, claim.epoch, [1], [turn + 1])], stored.set_result)
            await stored
            by_pipeline.append(time.perf_counter() - started)
            next_id += messages
        report("psycopg cursor", by_cursor, messages)
        report("libpq pipeline", by_pipeline, messages)
    await cursors.close()
    await store.close()


def main() -> None:
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        EmbeddedPostgres(Path(folder) / "data") as postgres,
    ):
        uvloop.run(measure(postgres.url))


if __name__ == "__main__":
    main()
