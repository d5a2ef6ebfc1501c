"""Replicas in different stores exchange, take from the alias and bury as those in one do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from backing import Backing, SeveralBacking, StartNode, until
from logical import Scene
from tidegate.core.errors import InvalidValue
from tidegate.core.model import Attributes
from tidegate.core.replication import home_index
from tidegate.wire.packets.browsing import GetMessages
from tidegate.wire.packets.puts import PutMessages
from tidegate.wire.packets.reads import ReadMessage
from tidegate.wire.packets.settling import Return
from tidegate.wire.packets.transactions import Transact

pytestmark = pytest.mark.slow


@pytest.fixture
def backing(embedded_url: str) -> Iterator[Backing]:
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
    assert len(scene.there.replicas[second.queue_id].holding.queue) == 9
    assert await scene.pull(first, second, 4) == 4

    assert await scene.drain(second) == [(b"%d" % n, False) for n in range(5, 10)]
    assert await scene.drain(first) == [(b"%d" % n, False) for n in range(1, 5)]


async def test_an_alias_hands_over_to_every_store(scene: Scene) -> None:
    alias = scene.leader.queue_id
    group = next(f"g{n}" for n in range(99) if home_index(f"g{n}") % 2 == 1)
    # As if there were no homes yet: with them only what somebody else stores gets here.
    scene.here.replicas[alias].holding.homes = None
    await scene.put(alias, b"a", b"b", attributes=[Attributes(group=group), None])
    for _ in range(8):
        await scene.put(alias, b"x")
    queues = [
        node.replicas[place.queue_id].holding.queue
        for node, place in zip((scene.here, scene.there), scene.places, strict=True)
    ]
    await until(lambda: sum(map(len, queues)) == 10)
    assert min(map(len, queues)) >= 3
    assert b"a" in [payload for payload, _ in await scene.drain(scene.places[1])]


async def test_the_dead_letters_of_a_replica_in_another_store_are_kept_once(scene: Scene) -> None:
    _, second = scene.places
    await scene.put(second.queue_id, b"bad")
    await scene.talker.ask(ReadMessage(second.queue_id, lease_ms=60_000))
    await scene.talker.ask(Return(second.queue_id, 0, [(1, 1)], reject=True))
    replica = scene.there.replicas[second.queue_id]
    await until(lambda: bool(replica.meters.dead_lettered.total))
    found = await scene.there.store.find_queue(None, "orders.dead")
    assert found is not None
    answered = await scene.talker.link.ask(GetMessages(found.queue_id))
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
    await until(lambda: replica.meters.dead_lettered.total == later)
    await scene.talker.ask(Return(second.queue_id, 0, [(1, 1)], reject=True))
    await until(lambda: replica.meters.dead_lettered.total == 1 + later)

    found = await scene.there.store.find_queue(None, "orders.dead")
    assert found is not None
    grave = scene.there.replicas[found.queue_id].holding.queue
    assert len(grave) == 1 + later


async def test_a_transaction_over_two_stores_is_refused_with_a_sentence(scene: Scene) -> None:
    puts = [PutMessages(place.queue_id, 3, 1, [1], [5]) for place in scene.places]
    with pytest.raises(InvalidValue, match="different stores"):
        await scene.talker.ask(Transact(3, 1, puts, []), b"xy")
