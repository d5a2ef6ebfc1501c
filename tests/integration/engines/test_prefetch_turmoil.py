"""Prefetch changed again and again under load: nothing lost, nothing stuck, nothing twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_under_test import Engine, taken_until_last
from load import Load, assert_nothing_went_wrong, judged
from waiting import eventually_async

from tidegate.demo.history import HistoryWriter

# One RabbitMQ serves all tests of the engines.
pytestmark = pytest.mark.xdist_group("engines")

# More deliveries than this come between two changes.
EACH = 4
PRODUCERS = 8


def more_than(load: Load, deliveries: int) -> Callable[[], bool]:
    return lambda: load.deliveries > deliveries


@pytest.mark.parametrize("changes", [30, pytest.param(200, marks=pytest.mark.only_with_all)])
async def test_changes_of_prefetch_lose_hold_up_and_repeat_nothing(
    engine: Engine, mq: Any, tmp_path: Path, changes: int
) -> None:
    chance = random.Random(engine.name)
    await mq.create_queue("orders")
    changed = asyncio.Event()
    with (
        HistoryWriter(tmp_path / "all", "steered") as history,
        HistoryWriter(tmp_path / "beside", "beside") as history_beside,
    ):
        load, beside = Load(history, "orders"), Load(history_beside, "orders")

        acknowledged = Counter[Load]()

        def endless() -> Any:
            seq = 0
            while not changed.is_set():
                yield seq
                seq += 1

        async def consume(subscription: Any, seen_by: Load) -> None:
            async for message in subscription:
                seen_by.delivered(message)
                if chance.random() < 0.2:
                    await asyncio.sleep(0.001)  # the handler's work: messages wait meanwhile
                seen_by.acknowledges(message)
                message.ack()
                acknowledged[seen_by] += 1

        async def change(subscription: Any) -> None:
            for _ in range(changes):
                prefetch = round(chance.choice([1, 1, 2, 3, 5, 10, 40, 200]))
                await subscription.set_prefetch(prefetch)
                assert subscription.prefetch == prefetch
                # Not stuck: after each change some more come.
                await eventually_async(more_than(load, load.deliveries + EACH))
            changed.set()

        async with (
            mq.subscribe("orders", prefetch=10) as steered,
            mq.subscribe("orders", prefetch=2) as other,
        ):
            consuming = [
                asyncio.create_task(consume(steered, load)),
                asyncio.create_task(consume(other, beside)),
            ]
            producing = [
                asyncio.create_task(load.produce(mq, f"p{number}", endless()))
                for number in range(PRODUCERS)
            ]
            await change(steered)
            await asyncio.gather(*producing)
            await eventually_async(lambda: load.confirmed <= load.seen.keys() | beside.seen.keys())
            await eventually_async(
                lambda: acknowledged.total() == load.deliveries + beside.deliveries
            )
            for task in consuming:
                task.cancel()
            await asyncio.gather(*consuming, return_exceptions=True)

    verdict = judged([tmp_path / "all", tmp_path / "beside"])
    assert_nothing_went_wrong(verdict)
    assert (verdict.duplicates_flagged, load.unknown) == (0, set())
    assert verdict.confirmed > EACH * changes, "there was load"
    assert await taken_until_last(mq, "orders") == []
