"""The writer: how many commits are under way, and what becomes of those without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from waiting import LIMIT_S, eventually_async

from tidegate.core.errors import LimitReached, TidegateError, Unavailable
from tidegate.core.segment import Segment
from tidegate.core.store import Write
from tidegate.storage import writer as writer_module
from tidegate.storage.memory import MemoryStore
from tidegate.storage.writer import Writer

Done = Callable[[list[bool] | Exception], None]


def a_write(first_id: int, count: int = 1) -> Write:
    segment = Segment(
        queue_id=1,
        first_id=first_id,
        priority=5,
        arrived_at=1.0,
        lengths=[1] * count,
        payload=b"x" * count,
        senders=[1] * count,
    )
    return Write(segment, 1, [7], [first_id])


class ScriptedStore(MemoryStore):
    """A store whose answers the test gives."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[list[int], Done]] = []
        self.on_disk: set[int] = set()

    def submit(self, writes: Sequence[Write], done: Done, *, writer: int = 0) -> None:
        self.asked.append(([write.segment.first_id for write in writes], done))

    async def stored(self, queue_id: int, first_ids: list[int]) -> set[int]:
        return self.on_disk & set(first_ids)

    @property
    def under_way(self) -> list[list[int]]:
        return [firsts for firsts, _ in self.asked]

    def answer(self, outcome: list[bool] | Exception) -> None:
        self.asked.pop(0)[1](outcome)


class Source:
    """Writes to hand over, and what became of them, in order."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._writes: list[Write] = []
        self.fates: list[tuple[int, bool | str | None]] = []

    def add(self, write: Write) -> None:
        self._writes.append(write)
        self._writer.schedule(self)

    def collect_writes(self) -> list[Write]:
        writes, self._writes = self._writes, []
        return writes

    def written(self, write: Write, stored: bool | None) -> None:
        self.fates.append((write.segment.first_id, stored))

    def refused(self, writes: Sequence[Write], error: TidegateError) -> None:
        self.fates += [(write.segment.first_id, error.name) for write in writes]


@pytest.fixture
def store() -> ScriptedStore:
    return ScriptedStore()


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_third_commit_waits_while_two_are_under_way(
    store: ScriptedStore,
) -> None:
    source = Source(Writer(store))
    for first_id in (1, 2, 3, 4):
        source.add(a_write(first_id))
        await turns()
    assert store.under_way == [[1], [2]]
    store.answer([True])
    await turns()
    assert store.under_way == [[2], [3, 4]]


async def test_behind_a_large_commit_everything_waits_for_company(store: ScriptedStore) -> None:
    source = Source(Writer(store))
    source.add(a_write(1, count=500))
    await turns()
    source.add(a_write(501))
    await turns()
    source.add(a_write(502))
    await turns()
    assert store.under_way == [[1]]
    store.answer([True])
    await turns()
    assert store.under_way == [[501, 502]]


async def test_idle_only_when_nothing_is_under_way(store: ScriptedStore) -> None:
    writer = Writer(store)
    source = Source(writer)
    source.add(a_write(1))
    await turns()
    source.add(a_write(2))
    await turns()
    store.answer([True])
    await turns()
    assert not writer.idle.is_set()
    store.answer([True])
    await turns()
    assert writer.idle.is_set()


@pytest.mark.parametrize("on_disk", [set(), {1}, {2}, {1, 2}])
async def test_two_lost_commits_find_their_fate_in_their_order(
    store: ScriptedStore, on_disk: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_BACKOFF_FIRST_S", 0.001)
    source = Source(Writer(store))
    source.add(a_write(1))
    await turns()
    source.add(a_write(2))
    await turns()
    store.answer(Unavailable("gone"))
    source.add(a_write(3))
    await turns()
    assert store.under_way == [[2]], "nothing new before the lost ones are settled"
    store.on_disk = set(on_disk)
    store.answer(Unavailable("gone"))
    while len(source.fates) < 3:
        await eventually_async(lambda: bool(store.asked) or len(source.fates) == 3)
        if store.asked:
            firsts = store.under_way[0]
            assert not set(firsts) & store.on_disk, "what is stored is not written again"
            store.on_disk |= set(firsts)
            store.answer([True] * len(firsts))
            await turns()
    assert source.fates == [(1, True), (2, True), (3, True)]


async def test_a_lost_commit_that_is_then_refused_leaves_the_others_alone(
    store: ScriptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_BACKOFF_FIRST_S", 0.001)
    writer = Writer(store)
    source = Source(writer)
    source.add(a_write(1))
    await turns()
    store.answer(Unavailable("gone"))
    await eventually_async(lambda: bool(store.asked))
    store.answer(LimitReached("the disk is full"))
    await turns()
    source.add(a_write(2))
    await turns()
    store.answer([True])
    assert source.fates == [(1, "LIMIT_REACHED"), (2, True)]
    async with asyncio.timeout(LIMIT_S):
        await writer.stop()


async def test_the_answer_to_a_refused_commit_is_not_its_followers(store: ScriptedStore) -> None:
    source = Source(Writer(store))
    source.add(a_write(1))
    await turns()
    source.add(a_write(2))
    await turns()
    store.answer(LimitReached("the disk is full"))
    store.answer([True])
    assert source.fates == [(1, "LIMIT_REACHED"), (2, True)]


async def test_a_lost_commit_that_a_new_owner_fences_off_is_not_called_unstored(
    store: ScriptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_BACKOFF_FIRST_S", 0.001)
    source = Source(Writer(store))
    source.add(a_write(1))
    await turns()
    # Stored, perhaps: a new owner may have delivered it, and it is gone by the time we ask.
    store.answer(Unavailable("gone"))
    await eventually_async(lambda: bool(store.asked))
    store.answer([False])
    await turns()
    assert source.fates == [(1, None)]
