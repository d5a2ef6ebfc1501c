"""Messages on their way to a store that is away come back as soon as that one is there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from backing import Backing, PostgresBacking, StartNode
from logical import Scene
from made_database import UNSYNCED, copy_of_database, quick_folder
from waiting import eventually_async

from tidegate.broker import ownership
from tidegate.core.errors import StaleEpoch
from tidegate.core.topology import ReplicaInfo
from tidegate.storage.embedded import EmbeddedPostgres
from tidegate.storage.sharded import ShardedStore

# Most of it is for the fixture: it starts three servers, which takes minutes on a busy machine.
pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def servers() -> Iterator[list[EmbeddedPostgres]]:
    folder = quick_folder("others")
    made = [
        EmbeddedPostgres(copy_of_database(folder / name), settings=UNSYNCED)
        for name in ("one", "two")
    ]
    try:
        for server in made:
            server.start()
        yield made
    finally:
        for server in made:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


class StoppableBacking(Backing):
    """A catalogue, and stores that have a server each."""

    def __init__(self, catalogue: PostgresBacking, servers: list[EmbeddedPostgres]) -> None:
        self._catalogue = catalogue
        self._servers = servers

    def store(self) -> ShardedStore:
        return ShardedStore([self._catalogue.url, *(server.url for server in self._servers)])


@pytest.fixture
def backing(embedded_url: str, servers: list[EmbeddedPostgres]) -> Iterator[Backing]:
    catalogue = PostgresBacking("catalogue", embedded_url)
    yield StoppableBacking(catalogue, servers)
    catalogue.give_back()


async def depart(scene: Scene, source: ReplicaInfo, target: ReplicaInfo, payload: bytes) -> None:
    """As a mover leaves it that dies before it has copied anything."""
    giver, taker = scene.here.replicas[source.queue_id], scene.there.replicas[target.queue_id]
    [first_id] = [
        segment.first_id
        for segment in giver.context.queue.segments()
        if bytes(segment.body(0, segment.count)) == payload
    ]
    assert isinstance(scene.here.store, ShardedStore)
    await scene.here.store.ask(
        "select depart(%s, %s::int, %s, %s::int, %s::bigint[], %s::bigint[])",
        f"to {taker.info.name}",
        source.queue_id,
        giver.epoch,
        target.queue_id,
        [first_id],
        [1000],
    )


@pytest.fixture
async def two_on_their_way(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> tuple[Scene, ReplicaInfo]:
    """A replica, and messages of it on their way to others in two more stores."""
    monkeypatch.setattr(ownership, "_FINISH_MOVES_S", 0.02)
    scene = await Scene.of(start_node, stores=(0, 1))
    first, second = scene.places
    third = await scene.leader.add(scene.there, store_number=2)
    for payload, place in ((b"for one", second), (b"for two", third)):
        await scene.put(first.queue_id, payload)
        await depart(scene, first, place, payload)
    return scene, first


async def next_of(scene: Scene, place: ReplicaInfo) -> tuple[bytes, bool]:
    message = await eventually_async(lambda: scene.read(place))
    assert message is not None
    return message


async def test_returned_messages_are_served_while_another_store_is_away(
    servers: list[EmbeddedPostgres], two_on_their_way: tuple[Scene, ReplicaInfo]
) -> None:
    scene, first = two_on_their_way
    for server in servers:
        server.stop()

    # Another owner claims it, and knows of nothing.
    scene.here.replicas[first.queue_id].fence(StaleEpoch("its owner died"))
    await scene.put(first.queue_id, b"new")
    assert await scene.drain(first) == [(b"new", False)]
    await scene.here.replicas[first.queue_id].settled()

    servers[0].start()
    assert await next_of(scene, first) == (b"for one", True)
    assert await scene.drain(first) == []
    replica = scene.here.replicas[first.queue_id]
    assert replica.outgoing.has_open_moves
    await replica.settled()

    servers[1].start()
    assert await next_of(scene, first) == (b"for two", True)
    assert await scene.drain(first) == []
    scene.talker.close()


async def test_new_owner_serves_finished_moves_and_waits_for_the_others(
    servers: list[EmbeddedPostgres], two_on_their_way: tuple[Scene, ReplicaInfo]
) -> None:
    scene, first = two_on_their_way
    servers[1].stop()

    scene.here.replicas[first.queue_id].fence(StaleEpoch("its owner died"))
    replica = await scene.here.ownership.bring_here(first.queue_id)

    assert await scene.drain(first) == [(b"for one", True)]
    assert replica.outgoing.has_open_moves
    await replica.settled()
    servers[1].start()
    assert await next_of(scene, first) == (b"for two", True)
    scene.talker.close()
