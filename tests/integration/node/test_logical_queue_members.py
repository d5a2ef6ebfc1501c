"""Clients come to a logical queue, are elected onto replicas, and hear of every change."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest
from backing import Backing, Connect, StartNode, StoppedClock, crash
from logical import Leader, Talker, while_moving
from waiting import eventually_async

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.core.errors import (
    ChangedMeanwhile,
    InvalidValue,
    NotOwner,
    QueueNotExisting,
    Unavailable,
)
from tidegate.core.model import QueuePolicy
from tidegate.core.topology import (
    ControlMode,
    MemberRole,
    Range,
    ReplicaState,
    Scaling,
    ScalingPolicy,
)
from tidegate.protocol.catalogue import (
    CreateQueue,
    CreateQueueResponse,
    DeleteQueue,
    PurgeQueue,
    PurgeQueueResponse,
    SetPolicy,
)
from tidegate.protocol.cluster import (
    JoinAgain,
    Leave,
    MigrateClients,
    Migrated,
    Pull,
    PullResponse,
    SetScaling,
    TopologyChanged,
)
from tidegate.protocol.messages import (
    ConsumerEnded,
    Deliver,
    GetFate,
    GetFateResponse,
    GetMessages,
    GetMessagesResponse,
    PutMessages,
    ReadMessage,
    Subscribe,
)

Talk = Callable[..., Awaitable[Talker]]


@pytest.fixture
async def talk() -> AsyncIterator[Talk]:
    """Connect somebody who speaks packets."""
    talkers: list[Talker] = []

    async def to(node: Node) -> Talker:
        talkers.append(await Talker.to(node, f"talker-{len(talkers)}"))
        return talkers[-1]

    yield to
    for talker in talkers:
        talker.close()


async def members(node: Node, queue_id: int) -> dict[int, tuple[int, int]]:
    numbers = await node.stats.of_cluster(queue_id, False)
    return numbers.nodes[0].queues[0].members


async def test_consumers_are_elected_onto_the_replica_with_the_fewest(
    mq: Client, node: Node, talk: Talk
) -> None:
    queue = await mq.create_queue("orders")
    leader = await Leader.of(node, queue.queue_id)
    first, second = await leader.add(node), await leader.add(node)
    await leader.set_shares({1: 0.5, 2: 0.5})
    await node.aliases.poll()

    one, two = await talk(node), await talk(node)
    places = [
        (await one.join(queue.queue_id, MemberRole.CONSUMER, member=1)).replica_id,
        (await two.join(queue.queue_id, MemberRole.CONSUMER, member=1)).replica_id,
        (await two.join(queue.queue_id, MemberRole.CONSUMER, member=2)).replica_id,
        (await one.join(queue.queue_id, MemberRole.CONSUMER, member=2)).replica_id,
    ]
    assert sorted(places[:2]) == sorted(places[2:]) == [first.queue_id, second.queue_id]
    assert await members(node, queue.queue_id) == {1: (0, 2), 2: (0, 2)}
    # Producers put to all of them, unless the policy is about clients.
    joined = await one.join(queue.queue_id, MemberRole.PRODUCER)
    assert joined.replica_id == 0
    assert [place.share for place in joined.topology.replicas] == [0.5, 0.5]

    # Coming again changes nothing, leaving and the end of a connection do.
    assert (
        await one.join(queue.queue_id, MemberRole.CONSUMER, member=1, wanted=1)
    ).replica_id == first.queue_id
    await one.ask(Leave(queue.queue_id, MemberRole.CONSUMER, 1))
    two.close()
    alias = node.aliases.logical_queue(node.replicas[queue.queue_id])
    assert alias is not None
    await eventually_async(lambda: sum(map(sum, alias.counts().values())) == 1)


async def test_consumers_that_find_no_replica_are_told_when_one_comes(
    mq: Client, node: Node, talk: Talk
) -> None:
    queue = await mq.create_queue("orders")
    leader = await Leader.of(node, queue.queue_id)
    talker = await talk(node)
    joined = await talker.join(queue.queue_id, MemberRole.CONSUMER, member=1)
    assert (joined.replica_id, joined.topology.replicas) == (0, [])

    place = await leader.add(node)

    moved = await talker.heard(Migrated)
    assert moved == Migrated(queue.queue_id, MemberRole.CONSUMER, 1, place.queue_id)
    changed = await talker.heard(TopologyChanged, lambda push: bool(push.topology.replicas))
    assert changed.topology.version > joined.topology.version

    # A replica that starts or drains takes nobody; who wants that one and no other gets it.
    await leader.set_state(1, ReplicaState.DRAINING)
    await node.aliases.poll()
    assert (await talker.join(queue.queue_id, MemberRole.CONSUMER, member=2)).replica_id == 0
    wanting = await talker.join(queue.queue_id, MemberRole.CONSUMER, member=3, wanted=1)
    bound = await talker.join(queue.queue_id, MemberRole.CONSUMER, member=4, wanted=1, bound=True)
    assert (wanting.replica_id, bound.replica_id) == (0, place.queue_id)
    with pytest.raises(QueueNotExisting):
        await talker.join(queue.queue_id, MemberRole.CONSUMER, member=5, wanted=7, bound=True)


async def test_producers_are_elected_under_the_policy_of_clients(
    mq: Client, node: Node, talk: Talk
) -> None:
    queue = await mq.create_queue("orders")
    leader = await Leader.of(node, queue.queue_id, Scaling(policy=ScalingPolicy.CLIENTS))
    places = [await leader.add(node), await leader.add(node)]
    await node.aliases.poll()
    one, two = await talk(node), await talk(node)
    elected = {(await t.join(queue.queue_id, MemberRole.PRODUCER)).replica_id for t in (one, two)}
    assert elected == {place.queue_id for place in places}
    # Under another policy they put to all again.
    await leader.store.set_scaling(queue.queue_id, Scaling())
    assert (await one.heard(Migrated)).replica_id == 0


async def test_connected_clients_migrate_the_idlest_first(
    mq: Client, node: Node, talk: Talk
) -> None:
    queue = await mq.create_queue("orders")
    leader = await Leader.of(node, queue.queue_id)
    first = await leader.add(node)
    await node.aliases.poll()
    busy, idle, worker = await talk(node), await talk(node), await talk(node)
    for talker in (busy, idle):
        await talker.join(queue.queue_id, MemberRole.CONSUMER, member=1)
    await worker.join(queue.queue_id, MemberRole.CONSUMER, member=1, wanted=1, bound=True)
    await busy.ask(Subscribe(first.queue_id, 1, 10))
    await busy.ask(PutMessages(first.queue_id, 1, 1, [1], [5]), b"x")
    await busy.heard(Deliver)
    await idle.ask(Subscribe(first.queue_id, 1, 10))
    second = await leader.add(node)
    await node.aliases.poll()

    order = MigrateClients(
        queue.queue_id, MemberRole.CONSUMER, first.queue_id, second.queue_id, count=1
    )
    await busy.ask(order)

    assert (await idle.heard(Migrated)).replica_id == second.queue_id
    assert not [push for push in busy.pushed if isinstance(push, Migrated)]
    await busy.ask(order)
    assert (await busy.heard(Migrated)).replica_id == second.queue_id
    # The worker belongs to its replica.
    await busy.ask(order)
    assert await members(node, queue.queue_id) == {1: (0, 1), 2: (0, 2)}


async def test_clients_migrate_to_a_replica_that_has_only_just_begun_to_serve(
    mq: Client, node: Node, talk: Talk
) -> None:
    queue = await mq.create_queue("orders")
    leader = await Leader.of(node, queue.queue_id)
    first = await leader.add(node)
    await node.aliases.poll()
    talker = await talk(node)
    await talker.join(queue.queue_id, MemberRole.CONSUMER, member=1)
    alias = await node.aliases.alias(node.replicas[queue.queue_id])
    second = await leader.add(node)
    # As it was before the node's last look: the leader is that much ahead.
    alias.topology = msgspec.structs.replace(alias.topology, replicas=alias.topology.replicas[:1])

    await talker.ask(
        MigrateClients(
            queue.queue_id, MemberRole.CONSUMER, first.queue_id, second.queue_id, count=1
        )
    )

    assert (await talker.heard(Migrated)).replica_id == second.queue_id
    with pytest.raises(InvalidValue, match="no replica that takes clients"):
        await talker.ask(
            MigrateClients(queue.queue_id, MemberRole.CONSUMER, second.queue_id, queue.queue_id)
        )


async def test_relayed_member_is_informed_and_can_leave(start_node: StartNode, talk: Talk) -> None:
    here, there = await start_node(), await start_node()
    maker = await talk(here)
    made = await maker.ask(CreateQueue("orders"))
    assert isinstance(made, CreateQueueResponse)
    queue_id = made.queue.queue_id
    leader = await Leader.of(here, queue_id)
    place = await leader.add(there)
    await here.aliases.poll()
    talker = await talk(there)
    assert (await talker.join(queue_id, MemberRole.CONSUMER, member=1)).replica_id == place.queue_id
    second = await leader.add(there)
    changed = await talker.heard(TopologyChanged, lambda p: len(p.topology.replicas) == 2)
    assert changed.topology.replicas[1].queue_id == second.queue_id
    alias = here.aliases.logical_queue(here.replicas[queue_id])
    assert alias is not None
    assert sum(map(sum, alias.counts().values())) == 1
    talker.close()
    await eventually_async(lambda: sum(map(sum, alias.counts().values())) == 0)


async def test_a_plain_queue_with_a_backlog_and_consumers_becomes_a_logical_one(
    mq: Client, node: Node, talk: Talk
) -> None:
    queue = await mq.create_queue("orders")
    for batch in range(30):
        await mq.put_many("orders", [b"%d" % (10 * batch + n) for n in range(10)])
    talker = await talk(node)
    await talker.ask(Subscribe(queue.queue_id, 1, 5))
    assert (await talker.heard(Deliver)).consumer == 1

    await talker.ask(SetScaling(queue.queue_id, Scaling(replicas=Range(1, 3))))

    ended = await talker.heard(ConsumerEnded)
    assert ended.code == NotOwner.code
    with pytest.raises(NotOwner, match="join"):
        await talker.ask(Subscribe(queue.queue_id, 2, 5))
    with pytest.raises(NotOwner, match="join"):
        await talker.ask(ReadMessage(queue.queue_id))
    # When replicas come, what it held is handed over by their shares.
    leader = await Leader.of(node, queue.queue_id, None)
    places = [await leader.add(node), await leader.add(node)]
    await leader.set_shares({1: 0.7, 2: 0.3})
    lengths = [node.replicas[place.queue_id].context.queue for place in places]
    await eventually_async(lambda: sum(map(len, lengths)) == 300)
    shown = (await node.stats.of_cluster(queue.queue_id, True)).nodes[0].queues
    assert (shown[0].logical, shown[0].replica, shown[0].waiting) == ("orders", 0, 0)
    assert shown[0].handed_over == sum(q.taken_over for q in shown) == 300
    with pytest.raises(InvalidValue, match="replicas"):
        await talker.ask(SetScaling(queue.queue_id, None))
    # A batch that is put to the alias itself goes on at once.
    await talker.ask(PutMessages(queue.queue_id, 9, 1, [1, 1], [5]), b"xy")
    await eventually_async(lambda: sum(map(len, lengths)) == 302)


async def test_scaling_that_somebody_has_changed_meanwhile_is_left_alone(
    mq: Client, node: Node, talk: Talk
) -> None:
    queue = await mq.create_queue("orders")
    narrow, wide = Scaling(replicas=Range(1, 2)), Scaling(replicas=Range(1, 9))
    await mq.set_scaling("orders", narrow, before=None)
    with pytest.raises(ChangedMeanwhile, match="queue 'orders' scales meanwhile"):
        await mq.set_scaling("orders", wide, before=None)
    assert (await mq.topology("orders")).scaling == narrow
    # Whose answer was lost, and who asks again, is not told of a stranger.
    await mq.set_scaling("orders", narrow, before=None)
    await mq.set_scaling("orders", wide, before=narrow)
    assert (await mq.topology("orders")).scaling == wide
    # A client that does not know of it says what holds from now on, as ever.
    talker = await talk(node)
    await talker.ask(SetScaling(queue.queue_id, narrow))
    assert (await mq.topology("orders")).scaling == narrow


async def test_impossible_scaling_is_refused_with_a_sentence(
    mq: Client, node: Node, talk: Talk
) -> None:
    queue = await mq.create_queue("orders")
    talker = await talk(node)
    for scaling, sentence in (
        (Scaling(replicas=Range(3, 2)), "replicas min 3, max 2: must be 0 ≤ min ≤ max"),
        (Scaling(replicas=Range(0, 0)), "replicas max 0: must be between 1 and"),
        (Scaling(min_load=10, max_load=10), "min_load 10, max_load 10: must be"),
        (Scaling(worker="shop/jobs.py"), "such as shop.jobs:app"),
        (Scaling(steering=ControlMode.MANUAL), "replicas_wanted"),
        (Scaling(polling_interval_s=0), "polling_interval 0: must be at least 0.1"),
        (Scaling(max_load=float("nan")), "max_load"),
        (Scaling(step_max=0), "step_max"),
    ):
        with pytest.raises(InvalidValue, match=sentence):
            await talker.ask(SetScaling(queue.queue_id, scaling))
    transient = await mq.create_queue("ticks", durable=False)
    with pytest.raises(InvalidValue, match="durable"):
        await talker.ask(SetScaling(transient.queue_id, Scaling()))
    with pytest.raises(InvalidValue, match="replica of 'orders'"):
        await mq.create_queue("orders#2")


async def test_a_retired_replica_is_forgotten_and_its_batches_are_not(
    mq: Client, node: Node, talk: Talk
) -> None:
    queue = await mq.create_queue("orders")
    leader = await Leader.of(node, queue.queue_id)
    place = await leader.add(node)
    await leader.add(node)
    talker = await talk(node)
    await talker.ask(PutMessages(place.queue_id, 77, 1, [1], [5]), b"x")
    with pytest.raises(Unavailable, match="still there"):
        await talker.ask(GetFate(queue.queue_id, place.queue_id, 77, 1))
    await leader.set_state(1, ReplicaState.DRAINING)
    assert not await leader.retire(1)
    # What waits in it is exchanged; then it may go.
    other = (await leader.place(2)).queue_id
    await node.aliases.poll()
    assert await talker.ask(Pull(other, place.queue_id, 10)) == PullResponse(1)
    assert await leader.retire(1)
    await eventually_async(lambda: place.queue_id not in node.replicas)
    with pytest.raises(QueueNotExisting):
        await talker.ask(PutMessages(place.queue_id, 77, 2, [1], [5]), b"x")
    fates = [
        await talker.ask(GetFate(queue.queue_id, place.queue_id, 77, batch)) for batch in (1, 2)
    ]
    assert fates == [GetFateResponse(True), GetFateResponse(False)]


async def test_request_about_a_logical_queue_covers_all_replicas(
    start_node: StartNode, talk: Talk
) -> None:
    here, there = await start_node(), await start_node()
    talker = await talk(here)
    made = await talker.ask(CreateQueue("orders"))
    assert isinstance(made, CreateQueueResponse)
    queue_id = made.queue.queue_id
    leader = await Leader.of(here, queue_id)
    places = [await leader.add(here), await leader.add(there)]
    for batch, place in enumerate(places, 1):
        await talker.ask(PutMessages(place.queue_id, 1, batch, [2, 2], [5]), b"abcd")

    answered = await talker.link.request(GetMessages(queue_id))
    assert isinstance(answered.packet, GetMessagesResponse)
    assert [run.lengths for run in answered.packet.runs] == [[2, 2], [2, 2]]
    assert bytes(answered.body) == b"abcdabcd"
    numbers = await here.stats.of_cluster(queue_id, True)
    shown = [queue for each in numbers.nodes for queue in each.queues]
    assert sorted((queue.logical, queue.replica, queue.waiting) for queue in shown) == [
        ("orders", 0, 0),
        ("orders", 1, 2),
        ("orders", 2, 2),
    ]
    await talker.ask(SetPolicy(queue_id, QueuePolicy(paused=True)))
    assert there.replicas[places[1].queue_id].info.policy.paused
    assert await talker.ask(PurgeQueue(queue_id)) == PurgeQueueResponse(4)
    await talker.ask(DeleteQueue(queue_id))
    await eventually_async(lambda: not here.replicas and not there.replicas)


async def test_a_machine_brings_what_is_assigned_to_it_and_nothing_else(
    start_node: StartNode, talk: Talk, backing: Backing
) -> None:
    here = await start_node()
    talker = await talk(here)
    made = await talker.ask(CreateQueue("orders"))
    assert isinstance(made, CreateQueueResponse)
    leader = await Leader.of(here, made.queue.queue_id)
    ordered = await here.store.add_machine("process", 2, None, leader.epoch)
    machine = await start_node(machine_id=ordered.machine_id)
    place = await leader.add(here)
    assert place.queue_id in here.replicas

    await leader.store.assign_replica(made.queue.queue_id, 1, ordered.machine_id, leader.epoch)

    await eventually_async(lambda: place.queue_id in machine.replicas)
    assert list(machine.replicas) == [place.queue_id]
    assert place.queue_id not in here.replicas


async def test_a_stated_rate_is_kept(start_node: StartNode, connect: Connect, talk: Talk) -> None:
    clock = StoppedClock()
    node = await start_node(clock=clock)
    mq = await connect(node)
    queue = await mq.create_queue("orders")
    leader = await Leader.of(node, queue.queue_id, Scaling(rate_max_per_s=200.0))
    place = await leader.add(node)
    talker = await talk(node)
    await talker.ask(PutMessages(place.queue_id, 1, 1, [1] * 60, [5]), b"x" * 60)
    await talker.ask(Subscribe(place.queue_id, 1, 1000))
    replica = node.replicas[place.queue_id]
    count = 0
    # One may go at once, and then what 200 a second bring in the time that has passed.
    for expected, passes_s in ((1, 0.125), (26, 0.125), (51, 0.0625)):
        while count < expected:
            count += sum(len(run.lengths) for run in (await talker.heard(Deliver)).runs)
        assert (count, replica.numbers().waiting) == (expected, 60 - expected)
        clock.turn(passes_s)
    while count < 60:
        count += sum(len(run.lengths) for run in (await talker.heard(Deliver)).runs)


async def test_member_of_a_draining_replica_is_informed_at_once(
    mq: Client, node: Node, talk: Talk
) -> None:
    queue = await mq.create_queue("orders")
    leader = await Leader.of(node, queue.queue_id)
    first = await leader.add(node)
    await node.aliases.poll()
    talker, worker = await talk(node), await talk(node)
    await talker.join(queue.queue_id, MemberRole.CONSUMER, member=1)
    await worker.join(queue.queue_id, MemberRole.CONSUMER, member=1, wanted=1, bound=True)
    # While there is no other, it is served where it is.
    await leader.set_state(1, ReplicaState.DRAINING)
    await node.aliases.poll()
    assert await members(node, queue.queue_id) == {1: (0, 2)}
    second = await leader.add(node)
    await node.aliases.poll()
    assert (await talker.heard(Migrated)).replica_id == second.queue_id
    # Whoever is bound ends with its replica.
    assert await members(node, queue.queue_id) == {1: (0, 1), 2: (0, 1)}
    assert first.queue_id != second.queue_id


async def test_a_new_owner_of_the_alias_knows_its_members_at_once(
    backing: Backing, start_node: StartNode, talk: Talk
) -> None:
    """Told by the owner that lets go, and by the node in between when the owner dies."""
    first, second, third = await start_node(), await start_node(), await start_node()
    maker = await talk(first)
    made = await maker.ask(CreateQueue("orders"))
    assert isinstance(made, CreateQueueResponse)
    queue_id = made.queue.queue_id
    leader = await Leader.of(first, queue_id)
    await leader.add(third)
    near, far = await talk(first), await talk(third)
    for talker in (near, far):
        await talker.join(queue_id, MemberRole.CONSUMER, member=1)

    await while_moving(lambda: second.ownership.bring_here(queue_id))
    for talker in (near, far):
        assert await talker.heard(JoinAgain) == JoinAgain(queue_id)
        await while_moving(
            lambda talker=talker: talker.join(queue_id, MemberRole.CONSUMER, member=1)
        )
    assert await members(second, queue_id) == {1: (0, 2)}

    await crash(second)
    await backing.declare_dead(second.member_id)
    for talker in (near, far):
        assert await talker.heard(JoinAgain) == JoinAgain(queue_id)
        await while_moving(
            lambda talker=talker: talker.join(queue_id, MemberRole.CONSUMER, member=1)
        )
    owner = next(node for node in (first, third) if queue_id in node.replicas)
    assert await members(owner, queue_id) == {1: (0, 2)}
