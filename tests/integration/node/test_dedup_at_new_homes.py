"""Who becomes the home of dedup ids knows those that were stored by whoever was it before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from backing import SEVERAL_STORES, STORES, StartNode
from logical import Scene, while_moving

from tidegate.broker.replica import Replica
from tidegate.core.errors import NotHome, Unavailable
from tidegate.core.model import Attributes
from tidegate.core.store import LaneSummary
from tidegate.core.topology import ReplicaInfo, ReplicaState

pytestmark = pytest.mark.parametrize("backing", [*STORES, *SEVERAL_STORES], indirect=True)


@pytest.fixture
async def scene(start_node: StartNode) -> AsyncIterator[Scene]:
    """All homes are at the first replica."""
    scene = await Scene.of(start_node)
    await scene.leader.set_homes(1)
    await scene.look()
    yield scene
    scene.talker.close()


async def put_once(scene: Scene, queue_id: int) -> None:
    await scene.put(queue_id, b"x", attributes=[Attributes(dedup_id="x")])


def alias_of(scene: Scene) -> Replica:
    return scene.here.replicas[scene.leader.queue_id]


async def consumed_and_draining(scene: Scene) -> None:
    """Put at its home and done; the replicas are about to go."""
    home = scene.places[0]
    await put_once(scene, home.queue_id)
    assert await scene.read(home) == (b"x", False)
    await scene.here.replicas[home.queue_id].settled()
    for place in scene.places:
        await scene.leader.set_state(place.number, ReplicaState.DRAINING)


async def all_retired(scene: Scene) -> None:
    for place in reversed(scene.places):
        assert await scene.leader.retire(place.number)
    assert (await scene.leader.topology()).homes == []


def assert_stored_nothing(replica: Replica) -> None:
    assert replica.meters.deduplicated.total == 1
    assert len(replica.context.queue) == 0


async def test_an_alias_that_takes_everything_again_knows_what_its_replicas_stored(
    scene: Scene,
) -> None:
    await consumed_and_draining(scene)
    await all_retired(scene)
    await scene.look()

    await put_once(scene, scene.leader.queue_id)

    assert_stored_nothing(alias_of(scene))


async def test_a_queue_that_is_plain_again_knows_what_its_replicas_stored(scene: Scene) -> None:
    await consumed_and_draining(scene)
    # Nobody looks in between: it is an alias with homes, and then it is none.
    async with scene.here.aliases._looking:
        await all_retired(scene)
        assert await scene.here.store.set_scaling(scene.leader.queue_id, None)
    await scene.look()
    assert not alias_of(scene).info.elastic

    await put_once(scene, scene.leader.queue_id)

    assert_stored_nothing(alias_of(scene))


async def test_an_alias_that_could_not_ask_refuses_until_it_has_asked(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await consumed_and_draining(scene)

    async def away(queue_id: int, newer_than_s: float) -> dict[str, float]:
        raise Unavailable("the store is away")

    with monkeypatch.context() as patched:
        patched.setattr(scene.here.store, "dedup_ids", away)
        await all_retired(scene)
        await scene.look()
        with pytest.raises(NotHome):
            await put_once(scene, scene.leader.queue_id)
    # Nothing has changed since, and yet there is something left to do.
    await scene.here.aliases.poll()

    await put_once(scene, scene.leader.queue_id)

    assert_stored_nothing(alias_of(scene))


async def test_a_replica_knows_what_was_stored_while_it_was_loaded(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading, may_go_on = asyncio.Event(), asyncio.Event()
    elsewhere = scene.there.store
    lanes = elsewhere.lanes
    known = {place.queue_id for place in scene.places}

    async def slow_lanes(queue_id: int) -> list[LaneSummary]:
        if queue_id not in {*known, scene.leader.queue_id}:
            loading.set()
            await may_go_on.wait()
        return await lanes(queue_id)

    monkeypatch.setattr(elsewhere, "lanes", slow_lanes)
    added = asyncio.create_task(added_there(scene))
    await loading.wait()

    # Its ids would be known by now, but for this one.
    await put_once(scene, scene.places[0].queue_id)
    await scene.leader.set_homes(3)
    may_go_on.set()
    new = await added
    await scene.look()
    await put_once(scene, new.queue_id)

    assert_stored_nothing(scene.there.replicas[new.queue_id])


async def added_there(scene: Scene) -> ReplicaInfo:
    place = await scene.leader.store.add_replica(scene.leader.queue_id, scene.leader.epoch)
    assert place is not None
    await while_moving(lambda: scene.there.ownership.bring_here(place.queue_id))
    return place
