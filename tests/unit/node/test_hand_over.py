"""What an alias stores goes on to its replicas, also after a replica has refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from backing import StartNode, StoppedClock
from logical import Scene
from waiting import eventually_async

from tidegate.broker import replication
from tidegate.core.errors import Unavailable


@pytest.fixture
async def scene(start_node: StartNode) -> AsyncIterator[Scene]:
    scene = await Scene.of(start_node, clock=StoppedClock())
    yield scene
    scene.talker.close()


async def test_a_replica_that_refused_is_asked_again_when_its_timer_rings(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timers of uvloop may ring a millisecond early: here the clock does not move at all."""
    monkeypatch.setattr(replication, "_AWAY_S", 0.01)
    give = replication.AliasForwarder._pull_to
    refused: set[int] = set()

    async def refuse_once(
        self: replication.AliasForwarder, place: Any, count: int, homed: bool
    ) -> int:
        if place.number not in refused:
            refused.add(place.number)
            raise Unavailable("not now")
        return await give(self, place, count, homed)

    monkeypatch.setattr(replication.AliasForwarder, "_pull_to", refuse_once)
    # As if there were no homes yet: with them only what somebody else stores gets here.
    alias = scene.leader.queue_id
    scene.here.replicas[alias].context.assignments = None
    await scene.put(alias, b"a", b"b")

    queues = [
        node.replicas[place.queue_id].context.queue
        for node, place in zip((scene.here, scene.there), scene.places, strict=True)
    ]
    await eventually_async(lambda: sum(map(len, queues)) == 2)
    assert refused == {1, 2}
