"""Waiting messages go from one replica to another: all that may, once, and nothing that may not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from backing import SEVERAL_STORES, STORES, StartNode
from logical import Scene, Talker, while_moving
from waiting import eventually_async

from tidegate.broker.transfer import split_segments
from tidegate.core.errors import (
    InvalidValue,
    IoFailure,
    NotHome,
    Notice,
    NotOwner,
    StaleEpoch,
    UnexpectedPacket,
)
from tidegate.core.model import Attributes
from tidegate.core.topology import ASSIGNMENT_SLOTS, ReplicaInfo, ReplicaState, assignment_slot
from tidegate.protocol.catalogue import CreateQueue, CreateQueueResponse
from tidegate.protocol.cluster import GiveAway, Pull, SetOwner
from tidegate.protocol.messages import ReadMessage, ReadMessageResponse, Return
from tidegate.protocol.packet import Packet, Request

pytestmark = pytest.mark.parametrize("backing", [*STORES, *SEVERAL_STORES], indirect=True)


@pytest.fixture
async def scene(start_node: StartNode) -> AsyncIterator[Scene]:
    scene = await Scene.of(start_node)
    yield scene
    scene.talker.close()


def a_group_at(number: int) -> str:
    """The name of a group that has its home there."""
    return next(f"g{n}" for n in range(1000) if assignment_slot(f"g{n}") % 2 == number - 1)


async def test_ready_messages_go_over_unflagged_and_only_once(scene: Scene) -> None:
    first, second = scene.places
    for batch in range(10):
        await scene.put(first.queue_id, b"%d" % batch)
    # One is with somebody, one was, and one is acknowledged.
    held = await scene.talker.link.request(ReadMessage(first.queue_id, lease_ms=60_000))
    assert bytes(held.body) == b"0"
    assert await scene.read(first) == (b"1", False)
    await scene.talker.link.request(ReadMessage(first.queue_id, lease_ms=60_000))
    await scene.talker.ask(Return(first.queue_id, 0, [(3, 3)], unstarted=True))

    assert await scene.pull(second, first) == 8

    assert await scene.drain(first) == []
    came = await scene.drain(second)
    assert came == [(b"2", True)] + [(b"%d" % n, False) for n in range(3, 10)]
    # What was held comes back to where it was, and a batch that is sent again is known there.
    scene._batches = 0
    await scene.put(first.queue_id, b"0")
    await scene.talker.ask(Return(first.queue_id, 0, [(1, 1)], unstarted=True))
    assert await scene.drain(first) == [(b"0", True)]
    assert await scene.pull(second, first) == 0


async def test_exchange_moves_messages_in_the_store(scene: Scene) -> None:
    first, second = scene.places
    # Thrice what the nodes may keep in memory.
    big = b"x" * 50_000
    for _ in range(120):
        await scene.put(first.queue_id, big)
    giver = scene.here.replicas[first.queue_id].context.queue
    assert giver.spilled.count
    taker = scene.there.replicas[second.queue_id].context.queue
    went = 0
    while came := await scene.pull(second, first, 20):
        went += came
    assert went == 120
    assert (len(giver), len(taker)) == (0, 120)
    assert len(await scene.drain(second)) == 120


async def test_a_batch_of_more_messages_than_were_reckoned_with_goes_over(scene: Scene) -> None:
    first, second = scene.places
    await scene.put(first.queue_id, *[b"x"] * 20_000)
    assert await scene.pull(second, first, 1) == 20_000
    assert len(scene.there.replicas[second.queue_id].context.queue) == 20_000


async def test_partly_done_segments_leave_what_is_done_behind(scene: Scene) -> None:
    first, second = scene.places
    await scene.put(first.queue_id, *[b"%d" % n for n in range(5)])
    await scene.read(first)
    assert await scene.pull(second, first) == 4
    assert [payload for payload, _ in await scene.drain(second)] == [b"1", b"2", b"3", b"4"]
    await scene.there.replicas[second.queue_id].settled()
    assert not await scene.there.store.stored(second.queue_id, [*range(1, 1000)])


async def test_groups_addressed_and_delayed_messages_stay(scene: Scene) -> None:
    first, second = scene.places
    group = a_group_at(1)
    await scene.put(first.queue_id, b"grouped", attributes=[Attributes(group=group)])
    await scene.put(first.queue_id, b"later", delays_s=[60.0])
    await scene.put(first.queue_id, b"anybody's")
    receiver = next(n for n in range(1, 100) if assignment_slot(n) % 2 == 0)
    await scene.put(first.queue_id, b"addressed", receivers=[receiver])
    assert await scene.pull(second, first) == 1
    assert await scene.drain(second) == [(b"anybody's", False)]
    held = {assignment_slot(group), assignment_slot(receiver)}
    numbers = (await scene.here.stats.of_cluster(first.queue_id, False)).nodes[0].queues[0]
    assert held == set(numbers.homes_held)
    # Who puts them elsewhere than at their home has to look where that is.
    for columns in ({"attributes": [Attributes(group=group)]}, {"receivers": [receiver]}):
        with pytest.raises(NotOwner, match="home elsewhere"):
            await scene.put(second.queue_id, b"x", **columns)


async def test_an_alias_sends_groups_home_in_their_order(scene: Scene) -> None:
    first, second = scene.places
    await scene.leader.set_state(1, ReplicaState.STARTING)
    await scene.leader.set_state(2, ReplicaState.STARTING)
    one, two = a_group_at(1), a_group_at(2)
    alias = scene.leader.queue_id
    groups = [one, two, two, None, one, two]
    attributes = [None if group is None else Attributes(group=group) for group in groups]
    # As if there were no homes, and nobody to hand over to; nobody looks whether that is so.
    async with scene.here.aliases._looking:
        scene.here.topologies.known.clear()
        scene.here.replicas[alias].context.assignments = None
        await scene.put(alias, *[b"%d" % n for n in range(6)], attributes=attributes)
        await scene.put(
            alias, b"6", b"7", attributes=[Attributes(group=two), Attributes(group=one)]
        )
    queues = [
        node.replicas[place.queue_id].context.queue
        for node, place in zip((scene.here, scene.there), scene.places, strict=True)
    ]

    await scene.leader.set_state(1, ReplicaState.SERVING)
    await scene.leader.set_state(2, ReplicaState.SERVING)

    await eventually_async(lambda: sum(map(len, queues)) == 8)
    assert len(scene.here.replicas[alias].context.queue) == 0

    def of(messages: list[tuple[bytes, bool]], *wanted: bytes) -> list[bytes]:
        return [payload for payload, _ in messages if payload in wanted]

    assert of(await scene.drain(first), b"0", b"4", b"7") == [b"0", b"4", b"7"]
    assert of(await scene.drain(second), b"1", b"2", b"5", b"6") == [b"1", b"2", b"5", b"6"]


async def test_next_owner_reads_a_divided_segment_whole(scene: Scene) -> None:
    first, _ = scene.places
    await scene.leader.set_homes(1)
    await scene.look()
    groups = [Attributes(group=a_group_at(1)), Attributes(group=a_group_at(2))]
    await scene.put(first.queue_id, b"kept", b"cut off", attributes=groups)
    topology = await scene.leader.topology()
    two_homes = msgspec.structs.replace(
        topology, homes=[1 + n % 2 for n in range(ASSIGNMENT_SLOTS)]
    )
    assert await split_segments(scene.here.replicas[first.queue_id], two_homes) == 1

    await while_moving(lambda: scene.there.ownership.bring_here(first.queue_id))

    assert [payload for payload, _ in await scene.drain(first)] == [b"kept", b"cut off"]


async def test_message_follows_its_moved_assignment(scene: Scene) -> None:
    first, second = scene.places
    await scene.put(first.queue_id, b"mine", attributes=[Attributes(group=a_group_at(1))])
    await scene.leader.set_homes(2)
    there = scene.there.replicas[second.queue_id].context.queue
    await eventually_async(lambda: len(there) == 1)
    assert len(scene.here.replicas[first.queue_id].context.queue) == 0


async def test_until_a_home_is_open_nobody_takes_anything_new_of_it(scene: Scene) -> None:
    first, second = scene.places
    alias = scene.here.replicas[scene.leader.queue_id]
    here, there = scene.here.replicas[first.queue_id], scene.there.replicas[second.queue_id]
    group = a_group_at(1)
    index = assignment_slot(group)
    columns = {"attributes": [Attributes(group=group)]}
    await scene.put(first.queue_id, b"before", **columns)
    assert index in here.assignments.ahead()

    await scene.leader.set_homes(-2)
    await scene.look()
    for queue_id in (first.queue_id, second.queue_id, alias.info.queue_id):
        with pytest.raises(NotHome):
            await scene.put(queue_id, b"x", **columns)
    # What was put before goes there all the same; then nobody has anything of it but its home.
    await eventually_async(lambda: len(there.context.queue) == 1)
    await eventually_async(
        lambda: index not in here.assignments.ahead() | alias.assignments.ahead()
    )
    assert index in there.assignments.ahead()

    await scene.leader.set_homes(2)
    await scene.look()
    await scene.put(second.queue_id, b"after", **columns)
    assert [payload for payload, _ in await scene.drain(second)] == [b"before", b"after"]


async def test_a_group_goes_to_its_new_home_behind_what_somebody_still_holds(scene: Scene) -> None:
    first, second = scene.places
    group = a_group_at(1)
    for n in range(3):
        await scene.put(first.queue_id, b"%d" % n, attributes=[Attributes(group=group)])
    held = await scene.talker.link.request(ReadMessage(first.queue_id, lease_ms=60_000))
    assert bytes(held.body) == b"0"
    await scene.leader.set_homes(2)
    await scene.look()
    there = scene.there.replicas[second.queue_id].context.queue
    await scene.pull(second, first)
    assert len(there) == 0, "what follows would be at work beside it"

    # It is given back, and comes before the others all the same.
    await scene.talker.ask(Return(first.queue_id, 0, [(1, 1)], unstarted=True))
    await eventually_async(lambda: len(there) == 3)
    assert [payload for payload, _ in await scene.drain(second)] == [b"0", b"1", b"2"]


async def test_message_that_cannot_move_holds_back_later_ones(scene: Scene) -> None:
    first, second = scene.places
    groups = (f"g{n}" for n in range(1000) if assignment_slot(f"g{n}") % 2 == 0)
    one, other = next(groups), next(groups)
    both = [Attributes(group=one), Attributes(group=other)]
    await scene.put(first.queue_id, b"0", b"1", attributes=both)
    await scene.put(first.queue_id, b"2", attributes=both[1:])
    await scene.talker.link.request(ReadMessage(first.queue_id, lease_ms=60_000))
    await scene.leader.set_homes(2)
    await scene.look()
    there = scene.there.replicas[second.queue_id].context.queue
    await scene.pull(second, first)
    assert len(there) == 0, "it would be there before its group's first"


async def test_an_alias_keeps_what_is_put_until_a_replica_can_be_reached(scene: Scene) -> None:
    for place in scene.places:
        await scene.leader.set_state(place.number, ReplicaState.STARTING)
    await scene.look()
    alias = scene.leader.queue_id
    for _ in range(5):
        await scene.put(alias, b"x")
    assert len(scene.here.replicas[alias].context.queue) == 5
    await scene.put(alias, b"later", delays_s=[0.05])
    await scene.leader.set_state(2, ReplicaState.SERVING)
    taker = scene.there.replicas[scene.places[1].queue_id].context.queue
    await eventually_async(lambda: len(taker) == 6)
    # Whoever reads the queue anew finds the same.
    await scene.talker.ask(SetOwner(scene.places[1].queue_id, scene.here.member_id))
    assert len(await scene.drain(scene.places[1])) == 6


async def test_a_taker_whose_question_is_not_answered_finds_what_came(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = scene.places
    await scene.put(first.queue_id, b"x", b"y")
    asked = 0
    ask = scene.there.node_clients.request

    async def lost(address: str, request: Request, within_s: float) -> Packet:
        nonlocal asked
        answer = await ask(address, request, within_s)
        asked += 1
        if asked == 1:
            raise IoFailure("the answer was lost")
        return answer

    monkeypatch.setattr(scene.there.node_clients, "request", lost)
    assert await scene.pull(second, first) == 2
    assert asked == 1
    assert sorted(await scene.drain(second)) == [(b"x", True), (b"y", True)]
    assert await scene.drain(first) == []


async def test_a_deposed_giver_or_taker_moves_nothing(scene: Scene) -> None:
    first, second = scene.places
    await scene.put(first.queue_id, b"x")
    giver = scene.here.replicas[first.queue_id]
    with pytest.raises(StaleEpoch):
        await scene.here.exchange.give_segments(
            giver, GiveAway(first.queue_id, second.queue_id, 99, 5, 100, 10, "stale")
        )
    assert not giver.fenced
    assert await scene.drain(first) == [(b"x", False)]
    # The other way round: the giver has a successor, and finds out.
    await scene.put(first.queue_id, b"y")
    store = scene.here.store
    assert await store.release(first.queue_id, giver.epoch, scene.here.member_id)
    epoch = scene.there.replicas[second.queue_id].epoch
    with pytest.raises(StaleEpoch):
        await scene.here.exchange.give_segments(
            giver, GiveAway(first.queue_id, second.queue_id, epoch, 500, 100, 10, "deposed")
        )
    assert giver.fenced
    assert (b"y", True) in await scene.drain(first)


async def test_only_nodes_ask_for_messages_to_be_given_away(scene: Scene) -> None:
    first, second = scene.places
    await scene.put(second.queue_id, b"waits")
    epoch = scene.here.replicas[first.queue_id].epoch
    # At the node that it is connected to, and through it at the other one.
    for source, target in ((first, second), (second, first)):
        with pytest.raises(UnexpectedPacket):
            await scene.talker.ask(
                GiveAway(source.queue_id, target.queue_id, epoch, 1, 1, 10, "forged")
            )
    assert await scene.drain(second) == [(b"waits", False)]


async def test_dead_letters_of_a_replica_are_those_of_the_logical_queue(scene: Scene) -> None:
    first, _ = scene.places
    await scene.put(first.queue_id, b"bad")
    await scene.talker.ask(ReadMessage(first.queue_id, lease_ms=60_000))
    await scene.talker.ask(Return(first.queue_id, 0, [(1, 1)], reject=True, error="no"))
    dead = await eventually_async(lambda: scene.here.store.find_queue(None, "orders.dead"))
    assert dead is not None
    answered = await scene.talker.link.request(ReadMessage(dead.queue_id, wait_ms=60_000))
    assert isinstance(answered.packet, ReadMessageResponse)
    attributes = (answered.packet.run.attributes or [None])[0]
    assert attributes is not None
    assert attributes.deaths is not None
    assert (bytes(answered.body), attributes.deaths[0].queue) == (b"bad", "orders")


async def test_queues_that_are_no_siblings_exchange_nothing(scene: Scene) -> None:
    other = await scene.talker.ask(CreateQueue("others"))
    assert isinstance(other, CreateQueueResponse)
    with pytest.raises(InvalidValue, match="siblings"):
        await scene.talker.ask(Pull(scene.places[0].queue_id, other.queue.queue_id, 10))


async def test_exchange_under_load_loses_and_doubles_nothing(scene: Scene) -> None:
    first, second = scene.places
    talkers = [await Talker.to(node, f"consumer-{node.name}") for node in (scene.here, scene.there)]
    seen: list[bytes] = []

    async def consume(talker: Talker, place: ReplicaInfo) -> None:
        while True:
            try:
                answered = await talker.link.request(ReadMessage(place.queue_id, wait_ms=300))
            except Notice:
                return
            seen.append(bytes(answered.body))

    async def produce() -> None:
        for n in range(400):
            await scene.put(first.queue_id, b"%d" % n)

    async def swap() -> None:
        while len(seen) < 300:
            await scene.pull(second, first, 7)
            await scene.pull(first, second, 5)

    readers = [consume(talkers[0], first), consume(talkers[1], second)]
    await asyncio.gather(produce(), swap(), *readers)
    while await scene.pull(second, first):
        pass
    seen += [payload for payload, _ in await scene.drain(first) + await scene.drain(second)]
    assert sorted(seen) == sorted(b"%d" % n for n in range(400))
    for talker in talkers:
        talker.close()
