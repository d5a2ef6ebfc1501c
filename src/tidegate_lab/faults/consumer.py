"""A consumer process that records every delivery and acknowledgement in a history.

    python -m tidegate_lab.faults.consumer --url … --queue … --name … --history …

It acknowledges most messages without waiting. It acknowledges every seventh with confirmation: a
message with a confirmed acknowledgement must never be delivered again. Every 101st message is
returned to the queue at its first delivery, and must be delivered again as redelivered. The
consumer records what it will do together with the delivery, before it does it, so that no other
event comes in between. It ends at SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
from pathlib import Path

import uvloop

from tidegate.client.message import Message
from tidegate.core.errors import TidegateError
from tidegate.demo.history import HistoryWriter, Phase, numbered
from tidegate_lab.faults.producer import FLUSH_S, PATIENCE_S, patient_client

CONFIRM_EVERY = 7
RETURN_EVERY = 101


async def consume(
    url: str, queue: str, name: str, history: HistoryWriter, *, prefetch: int, stop: asyncio.Event
) -> None:
    """Consume a queue until `stop` is set; raise if consuming ends earlier."""
    settling: set[asyncio.Task[None]] = set()

    def note_ack(phase: Phase, message: Message, delivery: int) -> None:
        producer, seq = numbered(message.payload)
        message_id = message.message_id
        history.note("ack", phase, queue, producer, seq, message_id=message_id, delivery=delivery)

    async def acknowledge(message: Message, delivery: int) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await message.ack_confirmed()
        except (TidegateError, TimeoutError):
            # A lost lease is unknown too, not failed: a node that has lost the queue answers so
            # even if it had just committed the acknowledgement.
            note_ack("info", message, delivery)
        else:
            note_ack("ok", message, delivery)

    async def give_back(message: Message) -> None:
        with contextlib.suppress(TidegateError):
            await message.nack(delay=0)

    async def take() -> None:
        taken = 0
        async with (
            patient_client(url, name) as mq,
            mq.subscribe(queue, prefetch=prefetch) as subscription,
        ):
            async for message in subscription:
                taken += 1
                payload = message.payload
                producer, seq = numbered(payload)
                history.note(
                    "deliver",
                    "ok",
                    queue,
                    producer,
                    seq,
                    priority=message.priority,
                    message_id=message.message_id,
                    redelivered=message.redelivered,
                    hash_of=payload,
                    group=message.group,
                    delivery=taken,
                )
                if not message.redelivered and taken % RETURN_EVERY == 0:
                    note_ack("fail", message, taken)
                    task = asyncio.create_task(give_back(message))
                elif taken % CONFIRM_EVERY == 0:
                    note_ack("invoke", message, taken)
                    task = asyncio.create_task(acknowledge(message, taken))
                else:
                    note_ack("invoke", message, taken)
                    message.ack()
                    continue
                settling.add(task)
                task.add_done_callback(settling.discard)

    async def flush_forever() -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            history.flush()

    working = [asyncio.create_task(take()), asyncio.create_task(flush_forever())]
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([*working, stopping], return_when=asyncio.FIRST_COMPLETED)
    for task in (*working, stopping, *settling):
        task.cancel()
    results = await asyncio.gather(*working, return_exceptions=True)
    history.flush()
    for result in results:
        # A task that ended before `stop` has failed; the run must see its error.
        if not isinstance(result, asyncio.CancelledError) and isinstance(result, BaseException):
            raise result


async def _run(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with HistoryWriter(options.history, options.name) as history:
        await consume(
            options.url, options.queue, options.name, history, prefetch=options.prefetch, stop=stop
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--queue", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--prefetch", type=int, default=200)
    uvloop.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
