"""The producer process of the demo: `python -m tidegate.demo.customers <task as JSON>`.

The load is open-loop: the number of messages due at a time does not depend on the queues. Each line
of stdin sets new rates by queue. The end of stdin stops the puts. Every put is recorded when it is
made and when it is answered, and the checker reads these histories. Within a message group only one
put is in progress, like a customer who waits for each confirmation.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import IO

import msgspec

import tidegate
from tidegate.core.errors import CallerError, InternalError, LimitReached, TidegateError
from tidegate.demo.history import HistoryWriter, numbered_payload
from tidegate.demo.scenario import GROUPED_EVERY, GROUPS, ORDERS

_TICK_S = 0.01
_FLUSH_S = 0.05
_START_S = 30.0
# Longer than any outage that the demo causes.
_PRODUCER_TIMEOUT_S = 30.0
# After a stall of this process, limit the number of messages that are overdue.
_CATCH_UP_S = 0.5


class ProducerTask(msgspec.Struct, frozen=True):
    """The address for puts, and the folder for histories."""

    url: str
    folder: str


class _NumberedProducer:
    """Puts numbered messages, and records the result of each."""

    def __init__(self, mq: tidegate.Client, name: str, history: HistoryWriter) -> None:
        self._mq = mq
        self._name = name
        self._history = history
        self._numbers: dict[tuple[str, str], count[int]] = {}
        self._turns: dict[str, count[int]] = {}
        self._busy: set[str] = set()
        self._under_way: set[asyncio.Task[None]] = set()

    def put(self, queue: str) -> None:
        """Put one more message, without waiting for its confirmation."""
        turn = next(self._turns.setdefault(queue, count()))
        group = None
        if queue == ORDERS and turn % GROUPED_EVERY == 0:
            customer = f"{self._name}.{turn // GROUPED_EVERY % GROUPS}"
            group = customer if customer not in self._busy else None
        task = asyncio.create_task(self._put(queue, group))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _put(self, queue: str, group: str | None) -> None:
        stream = group or self._name
        seq = next(self._numbers.setdefault((queue, stream), count(1)))
        payload = numbered_payload(stream, seq)
        note = self._history.note
        note("put", "invoke", queue, stream, seq, hash_of=payload)
        if group is not None:
            self._busy.add(group)
        try:
            async with asyncio.timeout(_PRODUCER_TIMEOUT_S):
                message_id = await self._mq.put(queue, payload, group=group)
        except (CallerError, LimitReached):
            note("put", "fail", queue, stream, seq)
        except (TidegateError, TimeoutError):
            note("put", "info", queue, stream, seq)
        else:
            note("put", "ok", queue, stream, seq, message_id=message_id)
        finally:
            if group is not None:
                self._busy.discard(group)

    async def answered(self) -> None:
        """Wait until every put has an answer."""
        while self._under_way:
            await asyncio.wait(self._under_way)


async def _run(errand: ProducerTask) -> None:
    name = f"customers-{secrets.token_hex(3)}"
    stdin = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    path = Path(errand.folder) / f"{name}.history"
    with HistoryWriter(path, name) as history:
        async with tidegate.connect(errand.url, name=name, reconnect_s=_PRODUCER_TIMEOUT_S) as mq:
            putter = _NumberedProducer(mq, name, history)
            print("ready", flush=True)
            working = asyncio.create_task(_work(putter, history, stdin))
            await working
            await putter.answered()
    print("done", flush=True)


async def _work(
    putter: _NumberedProducer, history: HistoryWriter, stdin: asyncio.StreamReader
) -> None:
    rates: dict[str, float] = {}
    due: dict[str, float] = {}
    hearing = asyncio.create_task(stdin.readline())
    before = flushed = time.monotonic()
    while True:
        await asyncio.sleep(_TICK_S)
        now = time.monotonic()
        if hearing.done():
            line = hearing.result()
            if not line:
                return
            rates = msgspec.json.decode(line, type=dict[str, float])
            hearing = asyncio.create_task(stdin.readline())
        for queue, per_s in rates.items():
            due[queue] = due.get(queue, 0.0) + per_s * min(now - before, _CATCH_UP_S)
            while due[queue] >= 1.0:
                due[queue] -= 1.0
                putter.put(queue)
        before = now
        if now - flushed >= _FLUSH_S:
            flushed = now
            history.flush()


class ProducerProcess:
    """The producer process, seen by its parent."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @staticmethod
    async def start(errand: ProducerTask, complaints: IO[bytes]) -> ProducerProcess:
        """Start the process, and return when it is connected."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tidegate.demo.customers"),
            msgspec.json.encode(errand).decode(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            # Only the parent receives Ctrl-C.
            start_new_session=True,
        )
        customers = ProducerProcess(process)
        try:
            async with asyncio.timeout(_START_S):
                await customers._hear(b"ready\n")
        except BaseException:
            await customers.kill()
            raise
        return customers

    def put_at(self, rates: Mapping[str, float]) -> None:
        """Set the rates of puts per second, by queue."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(rates) + b"\n")

    async def finish(self) -> None:
        """Stop the puts, and return when all are confirmed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._hear(b"done\n")
        await self._process.wait()

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def _hear(self, word: bytes) -> None:
        assert self._process.stdout is not None
        if await self._process.stdout.readline() != word:
            raise InternalError("the customers of the demo have died; its log above says why")


if __name__ == "__main__":
    import uvloop

    uvloop.run(_run(msgspec.json.decode(sys.argv[1], type=ProducerTask)))
