"""What has one home in common goes there in order, whatever becomes of a batch on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import eventually_async

from tidegate.client.producer import PendingMessages
from tidegate.client.replica_producer import AssignedReplicaProducer
from tidegate.core.errors import (
    InvalidValue,
    IoFailure,
    QueueNotExisting,
    TidegateError,
    Unavailable,
)
from tidegate.protocol.messages import PutMessageResponse, PutMessages
from tidegate.protocol.packet import Packet

OLD_HOME, NEW_HOME = 11, 22

Done = Callable[[Packet | TidegateError, memoryview], None]


class Home:
    """An outbox whose home moves; what it sends is answered, and fates are told, by the test."""

    alive = True

    def __init__(self) -> None:
        self.at = OLD_HOME
        self.sent: list[tuple[PutMessages, Done]] = []
        # One for each question about a fate: whether it was stored.
        self.asked: list[asyncio.Future[bool]] = []
        spread: Any = SimpleNamespace(
            connection=SimpleNamespace(transport=self, reconnect_s=30.0, spawn=self._spawn),
            queues=SimpleNamespace(),
            pool=SimpleNamespace(drop=lambda _: None),
            queue="orders",
            queue_id=1,
            assigned_replica=lambda index, may_be_alias: self.at,
            on_replica_away=lambda *_, **__: None,
            on_replica_answered=lambda *_: None,
            batch_result=self._fate,
        )
        self.outbox = AssignedReplicaProducer(spread, 0, may_wait_at_alias=False)

    @staticmethod
    def _spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.create_task(work)

    async def _fate(self, queue_id: int, producer: int, batch: int) -> bool:
        self.asked.append(asyncio.get_running_loop().create_future())
        return await self.asked[-1]

    def submit(self, packet: PutMessages, bodies: list[bytes], done: Done) -> None:
        self.sent.append((packet, done))

    def put(self) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.outbox.add_pending(PendingMessages([b"x"], [future], None))
        return future

    async def answer(self, answer: Packet | TidegateError) -> tuple[int, int]:
        """Answer what was sent first; where it was sent, and the number of its batch."""
        await eventually_async(lambda: bool(self.sent))
        packet, done = self.sent.pop(0)
        where = packet.queue_id, packet.batch
        done(answer, memoryview(b""))
        return where


async def a_home_whose_batch_has_an_unknown_fate() -> tuple[
    Home, asyncio.Future[int], asyncio.Future[int]
]:
    """Its first batch may be stored where nobody is any more; the second waits."""
    home = Home()
    first = home.put()
    assert await home.answer(IoFailure("cut")) == (OLD_HOME, 1)
    home.at = NEW_HOME
    second = home.put()
    assert await home.answer(QueueNotExisting("gone")) == (OLD_HOME, 1)
    await eventually_async(lambda: len(home.asked) == 1)
    # Whatever else would have it sent.
    home.outbox.flush()
    await asyncio.sleep(0)
    assert not home.sent, "the second would be stored before the first"
    return home, first, second


async def test_later_put_waits_while_the_result_of_a_batch_is_unknown() -> None:
    home, first, second = await a_home_whose_batch_has_an_unknown_fate()
    home.asked[0].set_result(False)
    assert await home.answer(PutMessageResponse(5)) == (NEW_HOME, 1)
    assert await home.answer(PutMessageResponse(6)) == (NEW_HOME, 2)
    assert (await first, await second) == (5, 6)


async def test_waiting_put_is_sent_when_the_unknown_batch_was_stored() -> None:
    home, first, second = await a_home_whose_batch_has_an_unknown_fate()
    home.asked[0].set_result(True)
    assert await home.answer(PutMessageResponse(6)) == (NEW_HOME, 2)
    assert (await first, await second) == (0, 6)


async def test_waiting_put_is_sent_when_the_batch_result_stays_unknown() -> None:
    home, first, second = await a_home_whose_batch_has_an_unknown_fate()
    home.asked[0].set_exception(InvalidValue("never heard of it"))
    assert await home.answer(PutMessageResponse(6)) == (NEW_HOME, 2)
    with pytest.raises(IoFailure, match="not known"):
        await first
    assert await second == 6


async def test_a_fate_that_cannot_be_told_now_is_asked_for_again() -> None:
    home, first, second = await a_home_whose_batch_has_an_unknown_fate()
    home.asked[0].set_exception(Unavailable("try again"))
    assert await home.answer(QueueNotExisting("gone")) == (OLD_HOME, 1)
    await eventually_async(lambda: len(home.asked) == 2)
    home.asked[1].set_result(False)
    assert await home.answer(PutMessageResponse(5)) == (NEW_HOME, 1)
    assert await home.answer(PutMessageResponse(6)) == (NEW_HOME, 2)
    assert (await first, await second) == (5, 6)


async def test_of_two_fates_the_one_that_is_known_first_waits_for_the_other() -> None:
    home = Home()
    first, second = home.put(), home.put()
    assert [packet.batch for packet, _ in home.sent] == [1, 2]
    for _ in range(2):
        await home.answer(IoFailure("cut"))
    home.at = NEW_HOME
    await eventually_async(lambda: len(home.sent) == 2)
    for _ in range(2):
        await home.answer(QueueNotExisting("gone"))
    await eventually_async(lambda: len(home.asked) == 2)

    home.asked[1].set_result(False)
    await eventually_async(lambda: len(home.outbox._fates) == 1)
    home.outbox._flush()
    assert not home.sent
    home.asked[0].set_result(False)

    assert await home.answer(PutMessageResponse(5)) == (NEW_HOME, 1)
    assert await home.answer(PutMessageResponse(6)) == (NEW_HOME, 2)
    assert (await first, await second) == (5, 6)
