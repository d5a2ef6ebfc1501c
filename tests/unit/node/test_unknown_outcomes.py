"""Requests that a client must not repeat when the store did the work but its answer was lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from virtual_nodes import VirtualNode, in_virtual_time, virtual_node
from waiting import eventually_async

from tidegate.client.client import Client
from tidegate.core.errors import IoFailure, Unavailable
from tidegate.core.model import QueuePolicy

Work = Callable[[Client], Awaitable[Any]]


def lose_the_answer(there: VirtualNode, name: str) -> None:
    """Have the store do the work of its method `name`, but lose the first answer."""
    method = getattr(there.node.store, name)
    lost: list[str] = []

    async def losing(*arguments: Any) -> Any:
        answer = await method(*arguments)
        if not lost:
            lost.append(name)
            raise Unavailable("the store went away")
        return answer

    setattr(there.node.store, name, losing)


async def all_died(mq: Client) -> bool:
    return len(await mq.browse("dead")) == 4


@pytest.mark.parametrize(
    ("method", "work"),
    [
        ("create_queue", lambda mq: mq.create_queue("new")),
        ("delete_queue", lambda mq: mq.delete_queue("old")),
        ("create_topic", lambda mq: mq.create_topic("new")),
        ("delete_topic", lambda mq: mq.delete_topic("old")),
        ("delete_client", lambda mq: mq.delete_client("other")),
        ("drop_subscription", lambda mq: mq.unsubscribe_from("news", "subscribed")),
    ],
)
def test_request_raises_io_failure_when_the_answer_of_the_store_is_lost(
    method: str, work: Work
) -> None:
    @in_virtual_time
    async def running() -> None:
        async with virtual_node() as there:
            mq = await there.connect(name="first")
            await there.connect(name="other")
            await mq.create_queue("old")
            await mq.create_topic("old")
            await mq.create_topic("news")
            await mq.subscribe_to("news", "subscribed")
            lose_the_answer(there, method)

            with pytest.raises(IoFailure, match="not known"):
                await work(mq)

    running()


@in_virtual_time
async def test_create_queue_returns_the_queue_when_it_may_exist_and_an_answer_is_lost() -> None:
    async with virtual_node() as there:
        mq = await there.connect(name="first")
        lose_the_answer(there, "create_queue")

        assert (await mq.create_queue("new", exist_ok=True)).name == "new"


@in_virtual_time
async def test_redrive_says_how_many_went_and_is_not_repeated_when_a_later_queue_is_moving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with virtual_node() as there:
        mq = await there.connect(name="first")
        await mq.create_queue("dead")
        for name in ("first", "second"):
            await mq.create_queue(name, policy=QueuePolicy(dead_letter="dead"))
        for name in ("first", "second", "first", "second"):
            await mq.put(name, b"x")
            await (await mq.get(name, lease=60.0)).reject()
        await eventually_async(lambda: all_died(mq))
        ownership = there.node.ownership
        bring_here = ownership.bring_here
        asked: list[int] = []

        async def moving(queue_id: int) -> Any:
            asked.append(queue_id)
            if len(asked) == 2:
                raise Unavailable("the queue is being taken over: try again")
            return await bring_here(queue_id)

        monkeypatch.setattr(ownership, "bring_here", moving)

        with pytest.raises(IoFailure, match="1 message went back before"):
            await mq.redrive("dead", limit=2)

        assert len(await mq.browse("first")) == 1
        assert len(await mq.browse("second")) == 0
        assert len(await mq.browse("dead")) == 3
