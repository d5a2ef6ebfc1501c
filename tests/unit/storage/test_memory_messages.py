"""The store in memory answers a repeated commit as PostgreSQL does."""

from __future__ import annotations

import asyncio

from tidegate.core.errors import Unavailable
from tidegate.core.segment import Segment
from tidegate.core.store import Write
from tidegate.storage.memory import MemoryStore


async def outcome_of(store: MemoryStore, write: Write) -> list[bool] | Exception:
    answer: asyncio.Future[list[bool] | Exception] = asyncio.get_running_loop().create_future()
    store.submit([write], answer.set_result)
    return await answer


async def test_submit_answers_unavailable_when_the_segment_is_stored() -> None:
    """The writer looks a commit up after `Unavailable`; any other error says: not stored."""
    store = MemoryStore()
    queue = await store.create_queue("orders", True)
    assert queue is not None
    member_id = await store.join("node", "tidegate://node", 60.0)
    claim = await store.claim(queue.queue_id, member_id)
    assert claim is not None
    segment = Segment(
        queue_id=queue.queue_id,
        first_id=1,
        priority=5,
        arrived_at=1.0,
        lengths=[1],
        payload=b"x",
        senders=[1],
    )
    write = Write(segment, claim.epoch, [7], [1])
    assert await outcome_of(store, write) == [True]

    outcome = await outcome_of(store, write)

    assert isinstance(outcome, Unavailable)
    assert await store.stored(queue.queue_id, [1]) == {1}
