"""Replicas in different stores exchange, take from the alias and bury as those in one do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from backing import SeveralBacking, StartNode
from full_disk import FULL_FOR_EVER, without_room
from logical import Scene
from waiting import eventually_async

from tidegate.broker import ownership, transfer
from tidegate.core.errors import InvalidValue, LimitReached, StaleEpoch, Unavailable
from tidegate.core.model import Attributes
from tidegate.core.segment import Segment
from tidegate.core.topology import ReplicaInfo, ReplicaState, SegmentMove, Topology, assignment_slot
from tidegate.protocol.messages import GetMessages, PutMessages, ReadMessage, Return, Transact
from tidegate.storage.sharded import ShardedStore


@pytest.fixture
def backing(embedded_url: str) -> Iterator[SeveralBacking]:
    contents = SeveralBacking("several", embedded_url, count=2)
    yield contents
    contents.give_back()


@pytest.fixture
async def scene(start_node: StartNode) -> AsyncIterator[Scene]:
    scene = await Scene.of(start_node, stores=(0, 1))
    yield scene
    scene.talker.close()


async def test_messages_go_from_store_to_store_and_back(scene: Scene) -> None:
    first, second = scene.places
    assert (first.store_number, second.store_number) == (0, 1)
    for n in range(10):
        await scene.put(first.queue_id, b"%d" % n)
    assert await scene.read(first) == (b"0", False)

    assert await scene.pull(second, first) == 9
    assert len(scene.there.replicas[second.queue_id].context.queue) == 9
    assert await scene.pull(first, second, 4) == 4

    assert await scene.drain(second) == [(b"%d" % n, False) for n in range(5, 10)]
    assert await scene.drain(first) == [(b"%d" % n, False) for n in range(1, 5)]


async def test_an_alias_hands_over_to_every_store(scene: Scene) -> None:
    alias = scene.leader.queue_id
    group = next(f"g{n}" for n in range(99) if assignment_slot(f"g{n}") % 2 == 1)
    # As if there were no homes yet: with them only what somebody else stores gets here.
    scene.here.replicas[alias].context.assignments = None
    await scene.put(alias, b"a", b"b", attributes=[Attributes(group=group), None])
    for _ in range(8):
        await scene.put(alias, b"x")
    queues = [
        node.replicas[place.queue_id].context.queue
        for node, place in zip((scene.here, scene.there), scene.places, strict=True)
    ]
    await eventually_async(lambda: sum(map(len, queues)) == 10)
    assert min(map(len, queues)) >= 3
    assert b"a" in [payload for payload, _ in await scene.drain(scene.places[1])]


async def test_the_dead_letters_of_a_replica_in_another_store_are_kept_once(scene: Scene) -> None:
    _, second = scene.places
    await scene.put(second.queue_id, b"bad")
    await scene.talker.ask(ReadMessage(second.queue_id, lease_ms=60_000))
    await scene.talker.ask(Return(second.queue_id, 0, [(1, 1)], reject=True))
    replica = scene.there.replicas[second.queue_id]
    await eventually_async(lambda: bool(replica.meters.dead_lettered.total))
    found = await scene.there.store.find_queue(None, "orders.dead")
    assert found is not None
    answered = await scene.talker.link.request(GetMessages(found.queue_id))
    assert bytes(answered.body) == b"bad"
    await replica.settled()
    assert await scene.drain(second) == []


async def test_a_message_that_dies_after_many_later_ones_is_kept_too(scene: Scene) -> None:
    _, second = scene.places
    later = 1100
    await scene.put(second.queue_id, *[b"%d" % n for n in range(1 + later)])
    for _ in range(1 + later):
        await scene.talker.ask(ReadMessage(second.queue_id, lease_ms=600_000))
    replica = scene.there.replicas[second.queue_id]

    await scene.talker.ask(Return(second.queue_id, 0, [(2, 1 + later)], reject=True))
    await eventually_async(lambda: replica.meters.dead_lettered.total == later)
    await scene.talker.ask(Return(second.queue_id, 0, [(1, 1)], reject=True))
    await eventually_async(lambda: replica.meters.dead_lettered.total == 1 + later)

    found = await scene.there.store.find_queue(None, "orders.dead")
    assert found is not None
    grave = scene.there.replicas[found.queue_id].context.queue
    assert len(grave) == 1 + later


async def test_a_transaction_over_two_stores_is_refused_with_a_sentence(scene: Scene) -> None:
    puts = [PutMessages(place.queue_id, 3, 1, [1], [5]) for place in scene.places]
    with pytest.raises(InvalidValue, match="different stores"):
        await scene.talker.ask(Transact(3, 1, puts, []), b"xy")


# A store that is full


async def departures(scene: Scene, place: ReplicaInfo) -> int:
    """How many moves from a replica nobody has ended."""
    assert isinstance(scene.here.store, ShardedStore)
    source = await scene.here.store.others.holder(place.queue_id)
    return len(await source.ask("select * from departures(%s::int)", place.queue_id))


async def is_retired(scene: Scene, place: ReplicaInfo) -> bool:
    """Whether a replica that has nothing any more ends."""
    await scene.leader.set_state(place.number, ReplicaState.DRAINING)
    replica = scene.here.replicas.get(place.queue_id)
    if replica is not None:
        await replica.settled()
    return await scene.leader.retire(place.number)


async def test_messages_stay_when_the_target_store_is_full(
    scene: Scene, backing: SeveralBacking
) -> None:
    first, second = scene.places
    for n in range(4):
        await scene.put(first.queue_id, b"%d" % n)
    giver = scene.here.replicas[first.queue_id]

    with without_room(backing.urls[1], "insert on segment", times=1):
        with pytest.raises(Unavailable, match="short of room"):
            await scene.pull(second, first)
        assert await departures(scene, first) == 0
        # Acknowledged here, it is so wherever the others are.
        assert await scene.read(first) == (b"0", False)
        assert await scene.pull(second, first) == 3

    assert await scene.drain(second) == [(b"%d" % n, False) for n in range(1, 4)]
    assert await scene.drain(first) == []
    assert scene.here.replicas[first.queue_id] is giver, "nothing had to be loaded anew"
    assert await is_retired(scene, first)


async def test_move_is_completed_when_a_full_store_has_room(
    scene: Scene, backing: SeveralBacking, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = scene.places
    monkeypatch.setattr(transfer, "_BACKOFF_MAX_S", 0.005)
    monkeypatch.setattr(ownership, "_FINISH_MOVES_S", 0.02)
    asked = 0
    has_arrived = scene.there.store.has_arrived

    async def counted(move_id: str, target: int) -> bool:
        nonlocal asked
        asked += 1
        return await has_arrived(move_id, target)

    monkeypatch.setattr(scene.there.store, "has_arrived", counted)
    await scene.put(first.queue_id, b"0", b"1")
    giver = scene.here.replicas[first.queue_id]

    with without_room(backing.urls[1], "insert on arrival"):
        pulling = asyncio.create_task(
            scene.there.exchange.pull(scene.there.replicas[second.queue_id], first.queue_id, 1000)
        )
        await eventually_async(lambda: giver.fenced)
        # It is claimed all the same, and serves what it has.
        await scene.put(first.queue_id, b"2")
        assert await scene.drain(first) == [(b"2", False)]
        await scene.here.replicas[first.queue_id].settled()
        assert await departures(scene, first) == 1
        # Nor does who pulls believe that nothing came.
        await eventually_async(lambda: asked > transfer._TRIES)
        assert not pulling.done()

    assert await pulling == 0
    came_back = await eventually_async(lambda: scene.drain(first))
    assert came_back == [(b"0", True), (b"1", True)]
    assert await scene.drain(second) == []
    assert await departures(scene, first) == 0
    assert await is_retired(scene, first)


@pytest.mark.parametrize("times", [1, FULL_FOR_EVER])
async def test_messages_moved_from_a_full_store_arrive_once(
    scene: Scene, backing: SeveralBacking, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = scene.places
    monkeypatch.setattr(ownership, "_FINISH_MOVES_S", 0.02)
    for n in range(3):
        await scene.put(first.queue_id, b"%d" % n)

    with without_room(backing.urls[0], "delete on departure", times):
        assert await scene.pull(second, first) == 3
        assert await departures(scene, first) == (0 if times == 1 else 1)
        assert await scene.drain(first) == []
        assert [payload for payload, _ in await scene.drain(second)] == [b"0", b"1", b"2"]

    async def is_finished() -> bool:
        return await departures(scene, first) == 0

    await eventually_async(is_finished)
    assert await scene.drain(first) == await scene.drain(second) == []
    assert await is_retired(scene, first)


async def test_unreadable_arrival_is_found_by_the_next_load(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = scene.places
    await scene.put(first.queue_id, b"x")
    taker = scene.there.replicas[second.queue_id]

    async def read(*_: object) -> list[Segment]:
        raise LimitReached("no room for what is sorted")

    with monkeypatch.context() as patched:
        patched.setattr(scene.there.store, "read_between", read)
        with pytest.raises(LimitReached):
            await scene.pull(second, first)
    assert taker.fenced
    assert await scene.drain(second) == [(b"x", True)]
    assert await scene.drain(first) == []


async def test_refused_move_is_retried_with_the_new_topology(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = scene.places
    await scene.put(first.queue_id, b"x")
    known = scene.here.topologies.with_both
    asked = 0

    def known_later(*queue_ids: int) -> Topology | None:
        nonlocal asked
        asked += 1
        return known(*queue_ids) if asked > 1 else None

    monkeypatch.setattr(scene.here.topologies, "with_both", known_later)
    assert await scene.pull(second, first) == 1
    assert asked == 2


async def test_a_move_that_came_through_unheard_is_not_denied_by_a_later_refusal(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = scene.places
    await scene.put(first.queue_id, b"x")
    move = scene.here.store.move
    tries = 0

    async def unheard(wanted: SegmentMove) -> bool:
        nonlocal tries
        tries += 1
        if tries == 1:
            assert await move(wanted)
            raise Unavailable("the answer was lost")
        return False

    monkeypatch.setattr(scene.here.store, "move", unheard)
    assert await scene.pull(second, first) == 1
    assert tries == 2
    assert await scene.drain(first) == []
    assert await scene.drain(second) == [(b"x", False)]


async def test_a_queue_of_a_full_store_is_claimed_and_its_moves_are_finished_later(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = scene.places
    monkeypatch.setattr(ownership, "_FINISH_MOVES_S", 0.001)
    finish_moves = scene.here.store.finish_moves
    is_full, tries = True, 0

    async def maybe_full(queue_id: int, epoch: int) -> int:
        nonlocal tries
        tries += 1
        if is_full:
            raise LimitReached("no room for what is sorted")
        return await finish_moves(queue_id, epoch)

    monkeypatch.setattr(scene.here.store, "finish_moves", maybe_full)
    scene.here.replicas[first.queue_id].fence(StaleEpoch("its owner died"))
    replica = await scene.here.ownership.bring_here(first.queue_id)
    await eventually_async(lambda: tries >= 3)
    assert replica.outgoing.has_open_moves
    is_full = False
    await eventually_async(lambda: not replica.outgoing.has_open_moves)
    assert not replica.fenced
