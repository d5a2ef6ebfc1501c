"""Each code of Telesto's table 4.2, and each of ours, provoked once."""

from __future__ import annotations

import asyncio
import re

import msgspec
import pytest
from backing import Backing, Connect, StartNode
from logical_queue import LogicalQueue
from people import add_user, login
from waiting import LIMIT_S, eventually_async

from tidegate.broker.node import Node
from tidegate.client.address import parse_url
from tidegate.client.client import Client
from tidegate.client.connection import Transport
from tidegate.core import errors as e
from tidegate.core.model import Attributes, ClientInfo, ClientMode, QueueInfo
from tidegate.core.runtime import NodeLimits
from tidegate.core.topology import Range, Scaling
from tidegate.protocol.catalogue import (
    Authenticate,
    CreateQueue,
    DeleteClient,
    GetActiveQueues,
    GetQueues,
    IdentifyClient,
    RegisterClient,
    RegisterClientResponse,
)
from tidegate.protocol.connection import REQUESTS, ProtocolConnection, ReceivedPacket, frame_pieces
from tidegate.protocol.messages import (
    AcknowledgeIds,
    Extend,
    GetMessages,
    GetWaitingIds,
    PutMessages,
    ReadMessage,
    ReadResponse,
    Return,
    SetPrefetch,
    Settle,
    Subscribe,
    Unsubscribe,
    Withdraw,
)
from tidegate.protocol.packet import Error, Packet, Ping, Pong, Request
from tidegate.storage.memory import MemoryStore

on_memory = pytest.mark.parametrize("backing", ["memory"], indirect=True)


async def open_link(node: Node) -> Transport:
    ((host, port),) = parse_url(node.address)
    return await Transport.open(host, port, lambda *_: None, lambda _: None, 5.0)


async def error_of(mq: Client, packet: Request, body: bytes = b"") -> e.TidegateError:
    """What a packet that the client would not send is answered with."""
    link = await mq.connected()
    with pytest.raises(e.TidegateError) as refusal:
        await link.request(packet, [body])
    return refusal.value


class BrokenStore(MemoryStore):
    """A store with a bug."""

    async def list_queues(self) -> list[QueueInfo]:
        raise RuntimeError("nobody expected this")


async def test_01_internal_error() -> None:
    node = Node(BrokenStore())
    await node.start()
    try:
        async with Client(node.address) as mq:
            with pytest.raises(e.InternalError) as refusal:
                await mq.queues()
            assert "nobody expected" not in str(refusal.value), "the log says it, not the wire"
            await mq.ping()
    finally:
        await node.stop()
    assert isinstance(e.from_code(9999, "from the future"), e.InternalError)


class SilentStore(MemoryStore):
    """A store that never answers a deletion."""

    async def delete_queue(self, queue_id: int) -> bool:
        await asyncio.Event().wait()
        return True


async def test_02_io_error() -> None:
    node = Node(SilentStore())
    await node.start()
    try:
        async with Client(node.address) as mq:
            await mq.create_queue("orders")
            deleting = asyncio.create_task(mq.delete_queue("orders"))
            await mq.ping()
            assert mq.transport is not None
            mq.transport.abort()
            with pytest.raises(e.IoFailure, match="not known"):
                await deleting
            await mq.ping()
    finally:
        await node.stop()


async def test_03_unexpected_packet(node: Node) -> None:
    link = await open_link(node)
    with pytest.raises(e.UnexpectedPacket, match="identif"):
        await link.request(GetQueues())
    await link.request(RegisterClient("me"))
    with pytest.raises(e.UnexpectedPacket, match="0x02"):
        await link.request(Pong())
    await link.request(Ping())
    link.close()


async def test_04_unique_constraint(mq: Client) -> None:
    queue = await mq.create_queue("orders")
    link = await mq.connected()
    await link.request(Subscribe(queue.queue_id, consumer=77, prefetch=1))

    error = await error_of(mq, Subscribe(queue.queue_id, consumer=77, prefetch=1))

    assert type(error) is e.UniqueConstraint


async def test_05_queue_name_not_unique(mq: Client) -> None:
    await mq.create_queue("orders")
    with pytest.raises(e.QueueNameNotUnique, match="orders"):
        await mq.create_queue("orders")


async def test_06_client_name_not_unique(mq: Client) -> None:
    error = await error_of(mq, RegisterClient(mq.client_name))
    assert isinstance(error, e.ClientNameNotUnique)


async def test_07_client_not_existing(node: Node, connect: Connect) -> None:
    with pytest.raises(e.ClientNotExisting):
        await connect(node, client_id=12345)


async def test_08_queue_not_existing(mq: Client) -> None:
    for call in (mq.queue("nowhere"), mq.get(12345), mq.browse(12345), mq.delete_queue(12345)):
        with pytest.raises(e.QueueNotExisting):
            await call
    with pytest.raises(e.QueueNotExisting):
        await mq.put("nowhere", b"")
    with pytest.raises(e.QueueNotExisting):
        async with mq.subscribe("nowhere"):
            pass


async def test_09_required_parameter_missing(mq: Client) -> None:
    assert isinstance(await error_of(mq, IdentifyClient()), e.RequiredParameterMissing)

    class CreateNothing(Packet):
        method = CreateQueue.method

    link = await mq.connected()
    with pytest.raises(e.RequiredParameterMissing, match="CreateQueue"):
        await link.request(CreateNothing())


async def test_10_client_mode_permission_violation(node: Node, connect: Connect) -> None:
    reader = await connect(node, mode="read-only")
    with pytest.raises(e.ModeForbids, match="read_write"):
        await reader.create_queue("mine")


async def test_11_no_active_queues_existing(mq: Client) -> None:
    await mq.create_queue("empty")
    assert isinstance(await error_of(mq, GetActiveQueues()), e.NoActiveQueues)


async def test_12_no_queues_existing(mq: Client) -> None:
    assert isinstance(await error_of(mq, GetQueues()), e.NoQueues)


async def test_13_no_messages_in_queue(mq: Client) -> None:
    await mq.create_queue("orders")
    with pytest.raises(e.NoMessagesInQueue):
        await mq.get("orders")


async def test_14_no_messages_retrieved(mq: Client) -> None:
    await mq.create_queue("orders")
    await mq.put("orders", b"something")
    with pytest.raises(e.NoMessagesRetrieved):
        await mq.get("orders", context=1)


async def test_32_too_large(start_node: StartNode, connect: Connect) -> None:
    node = await start_node(limits=NodeLimits(message_bytes_max=1000))
    mq = await connect(node)
    await mq.create_queue("orders")
    with pytest.raises(e.TooLarge, match="1001"):
        await mq.put("orders", b"x" * 1001)
    with pytest.raises(e.TooLarge):
        await mq.put_to(["orders"], b"x" * 1001)
    with pytest.raises(e.TooLarge):
        mq.put("orders", b"x" * (16 * 1024 * 1024 + 1))
    await mq.put("orders", b"x" * 1000)


async def test_33_limit_reached(start_node: StartNode, connect: Connect) -> None:
    node = await start_node(limits=NodeLimits(memory_bytes=10_000))
    mq = await connect(node)
    await mq.create_queue("moods", durable=False)
    with pytest.raises(e.LimitReached, match="transient"):
        await mq.put("moods", b"x" * 20_000)


async def test_34_not_owner(start_node: StartNode, connect: Connect) -> None:
    owner, heir = await start_node(), await start_node()
    mq, admin = await connect(owner), await connect(owner, mode="admin")
    queue = await mq.create_queue("orders")
    waiting = asyncio.create_task(error_of(mq, ReadMessage(queue.queue_id, wait_ms=20_000)))
    await eventually_async(lambda: owner.replicas[queue.queue_id].dispatch.readers.count == 1)

    await admin.set_owner("orders", heir.member_id)

    assert isinstance(await waiting, e.NotOwner)


async def test_41_not_home(mq: Client, node: Node) -> None:
    orders = await LogicalQueue.make(mq, [node], 2)
    two = await orders.place(2)  # all homes are at the first
    grouped = PutMessages(two.queue_id, 1, 1, [1], [5], attributes=[Attributes(group="a")])
    assert isinstance(await error_of(mq, grouped, b"x"), e.NotHome)


async def test_35_stale_epoch(backing: Backing, start_node: StartNode, connect: Connect) -> None:
    deposed, taker = await start_node(), await start_node()
    mq = await connect(deposed)
    queue = await mq.create_queue("orders")
    await backing.declare_dead(deposed.member_id)
    await taker.ownership.route(queue.queue_id)

    error = await error_of(mq, PutMessages(queue.queue_id, 1, 1, [1], [5]), b"x")

    assert isinstance(error, e.StaleEpoch)


async def test_36_unavailable(node: Node) -> None:
    await node.stop()
    with pytest.raises(e.Unavailable, match="tidegate up"):
        await Client(node.address).open()


async def test_37_invalid_value(mq: Client) -> None:
    queue = await mq.create_queue("orders")
    for packet in (
        PutMessages(queue.queue_id, 1, 1, [1], [99]),
        Subscribe(queue.queue_id, 0, 1),
        Subscribe(queue.queue_id, 1, 0),
        Subscribe(queue.queue_id, 1, 10**9),
        Unsubscribe(queue.queue_id, 5),
        SetPrefetch(queue.queue_id, 5, 5),
        GetMessages(queue.queue_id, 0),
        GetWaitingIds(queue.queue_id, 0),
        AcknowledgeIds(queue.queue_id, [(2, 1)]),
        ReadMessage(queue.queue_id, wait_ms=-1),
        ReadMessage(queue.queue_id, wait_ms=2**63),
        ReadMessage(queue.queue_id, sender=2**40),
        ReadResponse(queue.queue_id, context=2**64 - 1),
        ReadMessage(queue.queue_id, lease_ms=-5),
    ):
        error = await error_of(mq, packet, b"x" if isinstance(packet, PutMessages) else b"")
        assert isinstance(error, e.InvalidValue), packet
    with pytest.raises(e.InvalidValue):
        Client("http://elsewhere")
    with pytest.raises(e.InvalidValue):
        Client("tidegate://here", mode="god")  # type: ignore[arg-type]


async def test_38_lease_lost(mq: Client) -> None:
    queue = await mq.create_queue("orders")
    await mq.put("orders", b"1")
    message = await mq.get("orders", lease=60)
    await message.ack_confirmed()
    with pytest.raises(e.LeaseLost):
        await message.ack_confirmed()
    for packet in (
        Settle(queue.queue_id, 9, [(1, 1)], confirm=True),
        Return(queue.queue_id, 9, [(1, 1)]),
        Extend(queue.queue_id, 9),
    ):
        assert isinstance(await error_of(mq, packet), e.LeaseLost)


async def test_39_malformed(node: Node) -> None:
    ((host, port),) = parse_url(node.address)
    reader, writer = await asyncio.open_connection(host, port)
    writer.writelines(frame_pieces(Ping.method, 5, b"\xc1 is nothing in MessagePack"))

    answer = await asyncio.wait_for(reader.read(), LIMIT_S)

    (event,) = ProtocolConnection(server=False).receive(answer)
    assert isinstance(event, ReceivedPacket)
    assert isinstance(event.packet, Error)
    assert event.packet.code == e.Malformed.code
    assert not e.Malformed.connection_survives
    writer.close()


async def test_40_no_reply(mq: Client) -> None:
    await mq.create_queue("sums")
    with pytest.raises(e.NoReply):
        await mq.request("sums", b"1 1", timeout=0.05)
    with pytest.raises(TimeoutError):
        await mq.request("sums", b"1 1", timeout=0.05)


async def test_50_forbidden(node: Node, connect: Connect) -> None:
    await (await connect(node)).create_queue("orders")
    await add_user(node, "ann", read="orders")
    ann = await connect(node, credentials=login("ann"))
    with pytest.raises(e.Forbidden, match="'ann' may not write queue 'orders'"):
        await ann.put("orders", b"1")


async def test_51_not_authenticated(node: Node, connect: Connect) -> None:
    await add_user(node, "ann", read="orders")
    with pytest.raises(e.NotAuthenticated, match="wants a login"):
        await connect(node)


async def test_60_a_topic_of_that_name_exists(mq: Client) -> None:
    await mq.create_topic("news")
    with pytest.raises(e.TopicNameNotUnique):
        await mq.create_topic("news")


async def test_61_no_topic_has_that_name(mq: Client) -> None:
    with pytest.raises(e.TopicNotExisting):
        await mq.publish("news", b"1")


async def test_62_changed_meanwhile(mq: Client) -> None:
    await mq.create_queue("orders")
    await mq.set_scaling("orders", Scaling(replicas=Range(1, 2)), before=None)
    with pytest.raises(e.ChangedMeanwhile):
        await mq.set_scaling("orders", Scaling(replicas=Range(1, 3)), before=None)


def test_every_code_is_provoked_here() -> None:
    provoked = {int(m[1]) for name in globals() if (m := re.match(r"test_(\d\d)_", name))}
    assert provoked == set(e.BY_CODE)


def test_codes_have_telestos_names_and_never_change() -> None:
    telesto = [
        "INTERNAL_ERROR",
        "IO_ERROR",
        "UNEXPECTED_PACKET",
        "UNIQUE_CONSTRAINT",
        "QUEUE_NAME_NOT_UNIQUE",
        "CLIENT_NAME_NOT_UNIQUE",
        "CLIENT_NOT_EXISTING",
        "QUEUE_NOT_EXISTING",
        "REQUIRED_PARAMETER_MISSING",
        "CLIENT_MODE_PERMISSION_VIOLATION",
        "NO_ACTIVE_QUEUES_EXISTING",
        "NO_QUEUES_EXISTING",
        "NO_MESSAGES_IN_QUEUE",
        "NO_MESSAGES_RETRIEVED",
    ]
    assert [e.BY_CODE[code].name for code in range(1, 15)] == telesto
    ours = ["TOO_LARGE", "LIMIT_REACHED", "NOT_OWNER", "STALE_EPOCH", "UNAVAILABLE"]
    ours += ["INVALID_VALUE", "LEASE_LOST", "MALFORMED", "NO_REPLY"]
    assert [e.BY_CODE[code].name for code in range(32, 41)] == ours
    assert [e.BY_CODE[code].name for code in (50, 51)] == ["FORBIDDEN", "NOT_AUTHENTICATED"]
    for code, error in e.BY_CODE.items():
        assert error.__doc__
        travelled = e.from_code(code, "a sentence")
        assert type(travelled) is error
        assert str(travelled) == "a sentence"


# Before identification


def example_of(kind: type[Request]) -> Request:
    """A packet that would be served, were it allowed."""
    values = {"name": "intruder", "mode_wanted": 3, "lengths": [1], "priorities": [5]}
    values |= {"queue_ids": [1], "ranges": [(1, 1)], "policy": {}, "message": "m", "user": "u"}
    values |= {"topic": "t", "queue": "q", "puts": [[1, 1, 1, [1], [5]]], "acks": []}
    values |= {"messages": [1, 1, 1, [1], [5]]}
    values |= {"role": "consumer", "scaling": None, "move_id": "m"}
    values |= {"service": "s", "by_hand": {}, "before": {}}
    required = len(kind.__struct_fields__) - len(kind.__struct_defaults__)
    fields = [values.get(name, 1) for name in kind.__struct_fields__[:required]]
    return msgspec.convert(fields, kind)


@on_memory
@pytest.mark.parametrize("kind", REQUESTS.values(), ids=lambda kind: kind.__name__)
async def test_before_identification_only_what_leads_there_is_served(
    kind: type[Request], node: Node, connect: Connect
) -> None:
    mq = await connect(node, name="me")
    await mq.create_queue("orders")
    await mq.put("orders", b"secret")
    stranger = await open_link(node)

    if kind is Ping:
        await stranger.request(Ping())
    elif kind is RegisterClient:
        answer = (await stranger.request(example_of(kind))).packet
        assert isinstance(answer, RegisterClientResponse)
        assert isinstance(answer.client, ClientInfo)
    elif kind is IdentifyClient:
        await stranger.request(IdentifyClient(name="me"))
    elif kind is Authenticate:
        with pytest.raises(e.NotAuthenticated):
            await stranger.request(example_of(kind))
    else:
        with pytest.raises(e.UnexpectedPacket, match=r"identif|a proof follows|only nodes"):
            await stranger.request(example_of(kind), [b"x"])
        await stranger.request(Ping())

    assert [m.payload for m in await mq.browse("orders")] == [b"secret"]
    assert [q.name for q in await mq.queues()] == ["orders"]
    stranger.close()


@on_memory
@pytest.mark.parametrize("mode", ClientMode)
@pytest.mark.parametrize("kind", REQUESTS.values(), ids=lambda kind: kind.__name__)
async def test_every_verb_asks_for_its_mode(
    kind: type[Request], mode: ClientMode, node: Node, connect: Connect
) -> None:
    await (await connect(node)).create_queue("orders")
    link = await open_link(node)
    await link.request(RegisterClient("me", mode))
    example = example_of(kind)
    if isinstance(example, Settle):
        example.confirm = True
    if isinstance(example, Withdraw):
        # Not answered itself: whatever becomes of it, the next one is.
        link.post(example)
        example = Ping()

    try:
        await link.request(example, [b"x"])
        refused = False
    except e.ModeForbids:
        refused = True
    except e.TidegateError:
        refused = False

    deletes_another = kind is DeleteClient and mode is not ClientMode.ADMIN
    assert refused == (kind.mode > mode or deletes_another)
    link.close()
