"""Every verb × every role × own, other and dead-letter queue, at the owner and elsewhere.

What each verb needs is written down here once more, by hand: were a packet's own word for it wrong,
the two would differ. A packet that is not in the table fails a test.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from backing import Connect, StartNode
from people import add_user, login
from waiting import eventually_async

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.client.message import Message
from tidegate.core.errors import Forbidden, QueueNotExisting, TidegateError
from tidegate.core.model import ClientMode, QueuePolicy, Right
from tidegate.core.services import ServiceOverride
from tidegate.core.topology import MemberRole, Scaling
from tidegate.protocol.catalogue import (
    ActFor,
    Authenticate,
    CreateQueue,
    CreateTopic,
    DeleteClient,
    DeleteQueue,
    DeleteTopic,
    FindClient,
    GetActiveQueues,
    GetQueueId,
    GetQueueName,
    GetQueues,
    GetRights,
    GetTopics,
    IdentifyClient,
    Prove,
    Publish,
    PurgeQueue,
    RegisterClient,
    SetPolicy,
    SubscribeTopic,
    UnsubscribeTopic,
)
from tidegate.protocol.cluster import (
    Explain,
    ExplainService,
    GetFleet,
    GetMembers,
    GetTopologies,
    GetTopology,
    GiveAway,
    Join,
    Leave,
    MigrateClients,
    Pull,
    SetOwner,
    SetScaling,
    Stats,
    SteerService,
)
from tidegate.protocol.connection import REQUESTS
from tidegate.protocol.messages import (
    AcknowledgeIds,
    Extend,
    GetFate,
    GetMessages,
    GetWaitingIds,
    PutMessages,
    PutToQueues,
    ReadMessage,
    ReadResponse,
    Redrive,
    Return,
    SetConsumerPrefetch,
    SetPrefetch,
    Settle,
    Subscribe,
    Transact,
    Unsubscribe,
    Withdraw,
)
from tidegate.protocol.packet import Ping, Request

CANARY = b"canary-payload-7411"
ROLES = ["nothing", "read", "write", "configure", "admin"]
THROUGH = ["the owner", "another node"]

Make = Callable[[int, str], Request]

READ, WRITE, CONFIGURE, ADMIN, SEE = "read", "write", "configure", "admin", "see"

# What a verb needs on the queue that it names, and how it names it: by id and by name.
NEEDS: dict[type[Request], tuple[str, Make]] = {
    CreateQueue: (CONFIGURE, lambda _, name: CreateQueue(name)),
    DeleteQueue: (CONFIGURE, lambda queue, _: DeleteQueue(queue)),
    GetQueueId: (SEE, lambda _, name: GetQueueId(name)),
    GetQueueName: (SEE, lambda queue, _: GetQueueName(queue)),
    GetMessages: (READ, lambda queue, _: GetMessages(queue)),
    GetWaitingIds: (READ, lambda queue, _: GetWaitingIds(queue, 1)),
    AcknowledgeIds: (READ, lambda queue, _: AcknowledgeIds(queue, [(1, 1 << 40)])),
    PurgeQueue: (CONFIGURE, lambda queue, _: PurgeQueue(queue)),
    PutMessages: (WRITE, lambda queue, _: PutMessages(queue, 5, 1, [1], [5])),
    PutToQueues: (WRITE, lambda queue, _: PutToQueues([queue], 6, 1, 5)),
    ReadMessage: (READ, lambda queue, _: ReadMessage(queue)),
    ReadResponse: (READ, lambda queue, _: ReadResponse(queue, 1)),
    Withdraw: (READ, lambda queue, _: Withdraw(queue, 12345)),
    Subscribe: (READ, lambda queue, _: Subscribe(queue, 1 + queue, 1)),
    Unsubscribe: (READ, lambda queue, _: Unsubscribe(queue, 1)),
    Settle: (READ, lambda queue, _: Settle(queue, 0, [(1, 1)], confirm=True)),
    Return: (READ, lambda queue, _: Return(queue, 0, [(1, 1)])),
    Extend: (READ, lambda queue, _: Extend(queue, 0)),
    SetPrefetch: (READ, lambda queue, _: SetPrefetch(queue, 1, 1)),
    Stats: (SEE, lambda queue, _: Stats(queue)),
    SetConsumerPrefetch: (ADMIN, lambda queue, _: SetConsumerPrefetch(queue, 1, 1, 1)),
    SetOwner: (ADMIN, lambda queue, _: SetOwner(queue, 1)),
    SetPolicy: (CONFIGURE, lambda queue, _: SetPolicy(queue, QueuePolicy(paused=True))),
    Transact: (
        WRITE,
        lambda queue, _: Transact(7, 1, [PutMessages(queue, 7, 1, [1], [5])], []),
    ),
    # Topics are named and granted like queues.
    CreateTopic: (CONFIGURE, lambda _, name: CreateTopic(name)),
    DeleteTopic: (CONFIGURE, lambda _, name: DeleteTopic(name)),
    Publish: (WRITE, lambda _, name: Publish(name, PutMessages(0, 8, 1, [1], [5]))),
    SubscribeTopic: (READ, lambda _, name: SubscribeTopic(name, name)),
    UnsubscribeTopic: (CONFIGURE, lambda _, name: UnsubscribeTopic(name, name)),
    Redrive: (READ, lambda queue, name: Redrive(queue, to=name, reason="rejected")),
    # Logical queues: a replica is granted like the queue that it is one of.
    Join: (READ, lambda queue, _: Join(queue, MemberRole.CONSUMER)),
    Leave: (SEE, lambda queue, _: Leave(queue, MemberRole.CONSUMER)),
    GetTopology: (SEE, lambda queue, _: GetTopology(queue)),
    SetScaling: (CONFIGURE, lambda queue, _: SetScaling(queue, Scaling())),
    GetFate: (WRITE, lambda queue, _: GetFate(queue, 1 << 20, 1, 1)),
    Pull: (ADMIN, lambda queue, _: Pull(queue, 1, 1)),
    GiveAway: (ADMIN, lambda queue, _: GiveAway(queue, 1, 1, 1, 1, 1, f"m{queue}")),
    MigrateClients: (ADMIN, lambda queue, _: MigrateClients(queue, MemberRole.CONSUMER, 1, 2)),
    # A service of that name, which there is none of.
    SteerService: (
        CONFIGURE,
        lambda _, name: SteerService(name, ServiceOverride(), ServiceOverride()),
    ),
    ExplainService: (SEE, lambda _, name: ExplainService(name)),
    Explain: (SEE, lambda queue, _: Explain(queue)),
}
LISTS = (GetQueues, GetActiveQueues, GetTopics, GetTopologies)
# About no queue: what they may is tested in test_login.py.
NO_QUEUE = (
    *(Ping, Authenticate, Prove, ActFor),
    *(RegisterClient, IdentifyClient, DeleteClient, FindClient, GetMembers),
    *(GetFleet, GetRights),
)


def satisfies(role: str, need: str) -> bool:
    return role == "admin" or role == need or (need == SEE and role != "nothing")


def test_the_matrix_knows_every_packet_and_every_packet_says_what_it_needs() -> None:
    known = {*NEEDS, *LISTS, *NO_QUEUE}
    assert known == set(REQUESTS.values()), "a new packet: say here what it needs"
    for kind in known:
        assert "right" in vars(kind), f"{kind.__name__} does not say which right it needs"
        assert (kind.right is None) == (kind in NO_QUEUE)
    for kind, (need, make) in NEEDS.items():
        claims = make(7, "orders").claims()
        assert claims, f"{kind.__name__} names a queue, and claims() does not know"
        assert claims[0][0] == Right(need)


@pytest.fixture
async def nodes(start_node: StartNode) -> list[Node]:
    return [await start_node(), await start_node()]


@pytest.fixture
async def admin(nodes: list[Node], connect: Connect) -> Client:
    """Who may do everything; the first node knows of it at once."""
    await add_user(nodes[0], "root", admin="*")
    return await connect(nodes[0], credentials=login("root"), mode="admin")


async def queues_of(admin: Client, role: str) -> dict[str, tuple[int, str]]:
    """A queue of the role's own, one of somebody else, and the dead letters of its own."""
    found = {}
    for kind, name in (("own", role), ("other", f"billing-{role}"), ("dead", f"{role}.dead")):
        queue = await admin.create_queue(name)
        await admin.put(name, CANARY)
        found[kind] = (queue.queue_id, name)
    return found


@pytest.mark.parametrize("through", THROUGH)
@pytest.mark.parametrize("kind", NEEDS, ids=lambda kind: kind.__name__)
async def test_a_verb_is_served_where_its_role_was_granted_and_nowhere_else(
    kind: type[Request], through: str, nodes: list[Node], admin: Client, connect: Connect
) -> None:
    need, make = NEEDS[kind]
    owner, other_node = nodes
    await other_node.accounts.refresh()
    for role in ROLES:
        queues = await queues_of(admin, role)
        await add_user(owner, role, **({} if role == "nothing" else {role: role}))
        # The widest mode: only the role is to decide.
        mq = await connect(
            owner if through == "the owner" else other_node,
            credentials=login(role),
            mode="admin",
        )
        link = await mq.connected()
        body = [b"x"] if need == WRITE else None
        for which in ("other", "dead", "own"):
            queue_id, name = queues[which]
            packet = make(queue_id, name)
            refusal, answer = None, b""
            try:
                answer = bytes((await link.request(packet, body)).body)
            except TidegateError as error:
                refusal = error
            allowed = which == "own" and satisfies(role, need)
            # These need a second right: redriving puts, and a subscription makes a queue.
            both = kind in (Redrive, SubscribeTopic)
            allowed = allowed and not (both and role != "admin")
            told = f"{kind.__name__} as {role} on {which}: {refusal!r}"
            assert isinstance(refusal, Forbidden | QueueNotExisting) is not allowed, told
            if not allowed:
                assert CANARY not in answer
                if which != "own" and any(isinstance(q, int) for _, q in packet.claims()):
                    # As if it were not there: not even its name comes out.
                    assert str(refusal) == f"no queue {queue_id}", told
        for which in ("other", "dead"):
            # And nothing was done there.
            name = queues[which][1]
            assert [m.payload for m in await admin.browse(name)] == [CANARY]
            assert (await admin.queue(name)).policy == QueuePolicy()
        await mq.close()


@pytest.mark.parametrize("through", THROUGH)
@pytest.mark.parametrize("role", ROLES)
async def test_lists_and_numbers_show_what_one_may_see(
    role: str, through: str, nodes: list[Node], admin: Client, connect: Connect
) -> None:
    owner, other_node = nodes
    await queues_of(admin, role)
    await add_user(owner, role, **({} if role == "nothing" else {role: role}))
    await other_node.accounts.refresh()
    mq = await connect(
        owner if through == "the owner" else other_node, credentials=login(role), mode="admin"
    )

    for topic in (role, f"billing-{role}"):
        await admin.create_topic(topic)
        for queue in (role, f"billing-{role}"):
            await admin.subscribe_to(topic, queue)
    expected = [] if role == "nothing" else [role]
    topics = await mq.topics()
    assert [topic.name for topic in topics] == expected
    assert [each.queue for topic in topics for each in topic.subscriptions] == expected
    assert [queue.name for queue in await mq.queues()] == expected
    assert [queue.name for queue in await mq.active_queues()] == expected
    numbers = await mq.stats()
    assert [queue.name for node in numbers.nodes for queue in node.queues] == expected


async def test_a_put_to_several_queues_needs_the_right_on_each(
    nodes: list[Node], admin: Client, connect: Connect
) -> None:
    await queues_of(admin, "mine")
    await add_user(nodes[0], "ann", write="mine")
    for node in nodes:
        await node.accounts.refresh()
        ann = await connect(node, credentials=login("ann"))
        ids = [(await admin.queue(name)).queue_id for name in ("mine", "billing-mine")]
        with pytest.raises(QueueNotExisting):
            await ann.put_to(ids, b"x")
        assert await ann.put_to(ids, b"for mine", partial=True) == [str(ids[0])]
    assert [m.payload for m in await admin.browse("mine")] == [CANARY, b"for mine", b"for mine"]
    assert [m.payload for m in await admin.browse("billing-mine")] == [CANARY]


async def test_a_transaction_needs_the_right_on_each_of_its_queues(
    nodes: list[Node], admin: Client, connect: Connect
) -> None:
    await queues_of(admin, "mine")
    await admin.create_queue("out")
    await add_user(nodes[0], "ann", read="mine", write="out")
    for node in nodes:
        await node.accounts.refresh()
        ann = await connect(node, credentials=login("ann"))
        message = await ann.get("mine", lease=60)
        with pytest.raises((Forbidden, QueueNotExisting)):  # noqa: PT012
            async with ann.transaction() as tx:
                tx.put("billing-mine", b"x")
                tx.ack(message)
        async with ann.transaction() as tx:
            tx.put("out", b"x")
            tx.ack(message)
        await admin.put("mine", CANARY)
        await ann.close()
    assert [m.payload for m in await admin.browse("out")] == [b"x", b"x"]
    assert [m.payload for m in await admin.browse("billing-mine")] == [CANARY]


async def test_a_policy_cannot_send_dead_letters_where_one_may_not_write(
    nodes: list[Node], admin: Client, connect: Connect
) -> None:
    await queues_of(admin, "mine")
    await add_user(nodes[0], "ann", configure="mine*")
    ann = await connect(nodes[0], credentials=login("ann"))
    with pytest.raises(Forbidden):
        await ann.set_policy("mine", dead_letter="billing-mine")
    with pytest.raises(Forbidden):
        await ann.create_queue("mine-2", policy=QueuePolicy(dead_letter="billing-mine"))
    await ann.set_policy("mine", paused=True)
    assert (await admin.queue("mine")).policy == QueuePolicy(paused=True)


async def test_set_policy_refuses_dead_letter_queue_without_read_permission(
    nodes: list[Node], admin: Client, connect: Connect
) -> None:
    await queues_of(admin, "mine")
    await add_user(nodes[0], "ann", configure="billing-*", read="mine", write="mine")
    for node in nodes:
        await node.accounts.refresh()
        ann = await connect(node, credentials=login("ann"))
        with pytest.raises(Forbidden, match="may not read queue 'billing-mine'"):
            await ann.set_policy("billing-mine", dead_letter="mine", ttl_s=0.001, keep_expired=True)
        with pytest.raises(Forbidden, match="may not read queue 'billing-2'"):
            await ann.create_queue("billing-2", policy=QueuePolicy(dead_letter="mine"))
    assert (await admin.queue("billing-mine")).policy == QueuePolicy()


async def test_a_topic_of_ones_own_is_no_way_into_a_queue_that_one_may_not_write(
    nodes: list[Node], admin: Client, connect: Connect
) -> None:
    await queues_of(admin, "mine")
    await admin.create_topic("news")
    await add_user(nodes[0], "ann", configure="billing-mine", read="news", write="news")
    ann = await connect(nodes[0], credentials=login("ann"))
    with pytest.raises(Forbidden, match="may not write queue 'billing-mine'"):
        await ann.subscribe_to("news", "billing-mine")
    await ann.publish("news", b"forged")
    assert [m.payload for m in await admin.browse("billing-mine")] == [CANARY]


async def test_dead_letters_go_back_only_where_one_may_write(
    nodes: list[Node], admin: Client, connect: Connect
) -> None:
    await queues_of(admin, "mine")
    died = await admin.get("mine", lease=60)
    await died.reject(error="hopeless")
    await add_user(nodes[0], "ann", read="mine.dead", write="billing*")
    await add_user(nodes[0], "bob", read="mine.dead", write="mine")
    await nodes[1].accounts.refresh()
    (dead,) = [m for m in await dead_letters(admin) if m.deaths]
    for node in nodes:
        ann = await connect(node, credentials=login("ann"))
        with pytest.raises(Forbidden, match="may not write queue 'mine'"):
            await ann.redrive("mine.dead", message_ids=[dead.message_id])
        with pytest.raises(Forbidden):
            await ann.redrive("mine.dead", to="mine", message_ids=[dead.message_id])
    assert len(await admin.browse("mine.dead")) == 2
    bob = await connect(nodes[1], credentials=login("bob"))
    assert await bob.redrive("mine.dead", message_ids=[dead.message_id]) == 1
    assert [m.payload for m in await admin.browse("mine")] == [CANARY]


async def dead_letters(admin: Client) -> list[Message]:
    """The dead letters, when the one on its way has come."""

    async def both() -> list[Message]:
        found = await admin.browse("mine.dead")
        return found if len(found) == 2 else []

    return await eventually_async(both)


@pytest.mark.parametrize(("mode", "can_put"), [("read-only", False), ("read-write", True)])
async def test_a_mode_narrows_a_role_and_never_widens_it(
    mode: str, can_put: bool, nodes: list[Node], connect: Connect
) -> None:
    await add_user(nodes[0], "root", admin="*")
    for node in nodes:
        await node.accounts.refresh()
        mq = await connect(node, credentials=login("root"), mode=mode)
        link = await mq.connected()
        outcome = []
        for packet in (CreateQueue(f"of {node.name}"), SetOwner(1, 1)):
            try:
                await link.request(packet)
                outcome.append(True)
            except TidegateError:
                outcome.append(False)
        assert outcome == [can_put, False]
    assert ClientMode.ADMIN > ClientMode.READ_WRITE > ClientMode.READ_ONLY
