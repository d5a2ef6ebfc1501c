"""A worker process killed with -9: what it held comes to another one, flagged."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from engine_under_test import PATIENCE_S, Engine, taken_until_last
from load import Load, assert_nothing_went_wrong, judged
from places import SUPPORT
from waiting import eventually_async

from tidegate.demo.history import HistoryWriter, Outstanding, read_history

# One RabbitMQ serves all tests of the engines.
pytestmark = pytest.mark.xdist_group("engines")

PRODUCERS = 5
EACH = 40
HANGS_AFTER = 20


@contextlib.asynccontextmanager
async def worker_process(
    engine: Engine, history: Path, name: str, hangs_after: int = 0
) -> AsyncIterator[asyncio.subprocess.Process]:
    program = SUPPORT / "doomed_worker.py"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, program, engine.url, history, name, str(hangs_after)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def until_it_has_handled(process: asyncio.subprocess.Process, count: int) -> None:
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        while int(await process.stdout.readline() or -1) < count:
            assert process.returncode is None


def outstanding_in(histories: list[Path]) -> int:
    """How many confirmed messages nobody has let go of yet."""
    found = Outstanding()
    for history in histories:
        for event in read_history(history) if history.exists() else ():
            found.feed(event)
    return len(found)


async def test_messages_of_a_killed_worker_go_to_another_flagged(
    engine: Engine, mq: Any, tmp_path: Path
) -> None:
    await mq.create_queue("orders")
    histories = [tmp_path / name for name in ("producers", "first", "second")]
    with HistoryWriter(histories[0], "producers") as history:
        load = Load(history, "orders")
        async with worker_process(engine, histories[1], "first", HANGS_AFTER) as first:
            producing = [
                asyncio.create_task(load.produce(mq, f"p{number}", range(EACH)))
                for number in range(PRODUCERS)
            ]
            await until_it_has_handled(first, HANGS_AFTER)
            first.send_signal(signal.SIGKILL)
            await first.wait()
        await asyncio.gather(*producing)

    async with worker_process(engine, histories[2], "second") as second:
        await eventually_async(lambda: not outstanding_in(histories))
        second.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            assert await second.wait() == 0

    # What came a second time, and was given back unbegun at the end.
    assert all(message.redelivered for message in await taken_until_last(mq, "orders"))
    verdict = judged(histories)
    assert_nothing_went_wrong(verdict)
    assert verdict.confirmed == PRODUCERS * EACH
    assert verdict.duplicates_flagged > 0, "it was killed with messages in its hands"
