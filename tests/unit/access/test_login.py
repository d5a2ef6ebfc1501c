"""Coming in: who has to log in, who is believed, and who is shown out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from backing import Connect, StartNode, TurnedClock
from people import PASSWORD, add_user, login, user
from waiting import eventually_async

from tidegate.broker.access import NODE_USER
from tidegate.broker.node import Node
from tidegate.broker.session import Session
from tidegate.client.address import Credentials, parse_url
from tidegate.client.client import Client
from tidegate.client.connect import connect as tidegate_connect
from tidegate.client.connection import Transport
from tidegate.core.errors import (
    ClientNotExisting,
    Forbidden,
    InvalidValue,
    LimitReached,
    ModeForbids,
    NotAuthenticated,
    UnexpectedPacket,
)
from tidegate.core.model import Grant, Right
from tidegate.core.runtime import NodeLimits
from tidegate.protocol.catalogue import (
    ActFor,
    Authenticate,
    CreateQueue,
    GetQueues,
    IdentifyClient,
    Prove,
    RegisterClient,
)
from tidegate.protocol.cluster import Stats
from tidegate.protocol.connection import ProtocolConnection
from tidegate.protocol.messages import Subscribe
from tidegate.protocol.scram import derive_keys
from tidegate.storage.memory import MemoryStore


async def open_link(node: Node) -> Transport:
    ((host, port),) = parse_url(node.address)
    return await Transport.open(host, port, lambda *_: None, lambda _: None, 60.0)


async def test_without_users_this_machine_needs_no_login_and_with_them_it_does(
    node: Node, connect: Connect
) -> None:
    before = await connect(node, name="me", reconnect_s=60.0)
    await before.create_queue("orders")
    await add_user(node, "ann", read="*")
    # Whoever was in without a login is shown out.
    await eventually_async(lambda: before.transport is None)
    with pytest.raises(NotAuthenticated):
        await before.connected()
    with pytest.raises(NotAuthenticated):
        await connect(node)
    ann = await connect(node, credentials=login("ann"))
    assert [queue.name for queue in await ann.queues()] == ["orders"]


async def test_login_can_be_asked_for_even_on_this_machine(
    start_node: StartNode, connect: Connect
) -> None:
    node = await start_node(login_always=True)
    with pytest.raises(NotAuthenticated, match="wants a login"):
        await connect(node)


@pytest.mark.parametrize("name", ["ann", "nobody", NODE_USER, ""])
async def test_a_wrong_password_and_a_wrong_user_are_told_the_same(
    name: str, node: Node, connect: Connect
) -> None:
    await add_user(node, "ann", read="*")
    with pytest.raises(NotAuthenticated, match=r"^user or password is wrong$"):
        await connect(node, credentials=Credentials(name, "not the password"))


async def test_a_user_may_log_in_right_after_it_was_made(node: Node, connect: Connect) -> None:
    await node.store.add_user(user("ann", read="*"))
    await connect(node, credentials=login("ann"))


async def test_user_and_password_come_in_the_url_or_the_environment(
    node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    await add_user(node, "ann", read="*")
    there = node.address.removeprefix("tidegate://")
    password = PASSWORD.replace(" ", "%20")
    async with tidegate_connect(f"tidegate://ann:{password}@{there}") as mq:
        await mq.ping()
    async with Client(f"tidegate://ann:{password}@{there}") as mq:
        await mq.ping()
    async with tidegate_connect(node.address, user="ann", password=PASSWORD) as mq:
        await mq.ping()
    file = tmp_path / "password"
    file.write_text(PASSWORD + "\n")
    async with tidegate_connect(f"tidegate://ann@{there}", password_file=file) as mq:
        await mq.ping()
    monkeypatch.setenv("TIDEGATE_USER", "ann")
    monkeypatch.setenv("TIDEGATE_PASSWORD_FILE", str(file))
    async with tidegate_connect(node.address) as mq:
        await mq.ping()
    monkeypatch.setenv("TIDEGATE_PASSWORD", "another one")
    with pytest.raises(NotAuthenticated):
        async with tidegate_connect(node.address):
            pass
    monkeypatch.delenv("TIDEGATE_PASSWORD")
    monkeypatch.delenv("TIDEGATE_PASSWORD_FILE")
    with pytest.raises(InvalidValue, match="no password for user 'ann'"):
        tidegate_connect(node.address)


async def test_unfinished_login_permits_no_request(node: Node) -> None:
    await add_user(node, "ann", admin="*")
    link = await open_link(node)
    for packet in (RegisterClient("me"), IdentifyClient(1), ActFor("ann")):
        with pytest.raises(NotAuthenticated):
            await link.request(packet)
    await link.request(Authenticate("n,,n=ann,r=abcdef"))
    for packet in (RegisterClient("me"), IdentifyClient(1), ActFor("ann")):
        with pytest.raises(NotAuthenticated):
            await link.request(packet)
    for packet in (GetQueues(), CreateQueue("mine"), Stats()):
        with pytest.raises(UnexpectedPacket):
            await link.request(packet)
    with pytest.raises(UnexpectedPacket, match="once"):
        await link.request(Authenticate("n,,n=ann,r=abcdef"))
    with pytest.raises(NotAuthenticated):
        await link.request(Prove("c=biws,r=abcdef,p=AAAA"))
    await eventually_async(lambda: not link.alive)
    assert await node.store.list_queues() == []


async def test_a_client_cannot_act_for_others_or_log_in_twice(node: Node, connect: Connect) -> None:
    await add_user(node, "ann", admin="*")
    await add_user(node, "bob")
    bob = await connect(node, credentials=login("bob"))
    link = await bob.connected()
    for packet in (ActFor("ann"), ActFor(None), Authenticate("n,,n=ann,r=abc"), Prove("")):
        with pytest.raises(UnexpectedPacket):
            await link.request(packet)
    with pytest.raises(Forbidden):
        await bob.create_queue("orders")


async def test_a_client_belongs_to_its_user(node: Node, connect: Connect) -> None:
    for name in ("ann", "bob"):
        await add_user(node, name, read="*", write="*")
    await add_user(node, "root", admin="*")
    ann = await connect(node, credentials=login("ann"), name="worker")
    with pytest.raises(ClientNotExisting):
        await connect(node, credentials=login("bob"), name="worker")
    with pytest.raises(ClientNotExisting):
        await connect(node, credentials=login("bob"), client_id=ann.client_id)
    bob = await connect(node, credentials=login("bob"), mode="admin")
    with pytest.raises(ModeForbids):
        await bob.delete_client(ann.client_id)
    again = await connect(node, credentials=login("ann"), client_id=ann.client_id)
    assert again.client_name == "worker"
    root = await connect(node, credentials=login("root"), mode="admin")
    await root.delete_client(ann.client_id)


@pytest.mark.parametrize("change", ["removed", "another password", "other rights"])
async def test_changing_a_user_ends_its_connections_and_only_those(
    change: str, start_node: StartNode, connect: Connect
) -> None:
    nodes = [await start_node(), await start_node()]
    await add_user(nodes[0], "ann", read="*", write="*", configure="*")
    await add_user(nodes[0], "bob", read="*")
    await nodes[1].accounts.refresh()
    anns = [await connect(node, credentials=login("ann"), reconnect_s=60.0) for node in nodes]
    bob = await connect(nodes[1], credentials=login("bob"))
    bobs_link = bob.transport
    await anns[0].create_queue("orders")
    # Relayed: the owner is the other node.
    await anns[1].put("orders", b"1")
    links = [ann.transport for ann in anns]
    store = nodes[0].store
    if change == "removed":
        await store.remove_user("ann")
    elif change == "another password":
        await store.set_user_keys("ann", derive_keys("another password", iterations=4096))
    else:
        await store.set_user_grants("ann", [Grant(Right.READ, "orders")])
    # Nobody tells the nodes: they look, each second.
    await eventually_async(lambda: not any(link is not None and link.alive for link in links))
    assert bob.transport is bobs_link
    await bob.ping()
    for ann in anns:
        if change == "other rights":
            # It comes back by itself, and may do what it may now.
            await ann.ping()
            with pytest.raises(Forbidden):
                await ann.put("orders", b"2")
        else:
            with pytest.raises(NotAuthenticated):
                await ann.ping()


async def test_a_user_who_was_made_anew_does_not_inherit(node: Node, connect: Connect) -> None:
    await add_user(node, "ann", read="*")
    ann = await connect(node, credentials=login("ann"), name="worker")
    client_id = ann.client_id
    await ann.close()
    await node.store.remove_user("ann")
    await add_user(node, "ann", read="*")
    with pytest.raises(ClientNotExisting):
        await connect(node, credentials=login("ann"), client_id=client_id)


async def test_a_user_has_only_so_many_connections(start_node: StartNode, connect: Connect) -> None:
    node = await start_node(limits=NodeLimits(connections_per_user_max=2))
    for name in ("ann", "bob"):
        await add_user(node, name, read="*")
    first, _ = [await connect(node, credentials=login("ann")) for _ in range(2)]
    with pytest.raises(LimitReached, match="user 'ann' has 2 connections"):
        await connect(node, credentials=login("ann"))
    await connect(node, credentials=login("bob"))
    await first.close()
    await eventually_async(lambda: node.admission.connections == 2)
    await connect(node, credentials=login("ann"))


# The clock is turned: no lease of nodes and messages may run out by that, and no client is silent.
SLOW_READER_S = 100.0
PATIENT = NodeLimits(
    slow_reader_s=SLOW_READER_S, lease_s=1e6, heartbeat_s=1e6, delivery_lease_s=1e6
)


async def test_session_ends_when_consumer_does_not_read(
    start_node: StartNode, connect: Connect
) -> None:
    clock = TurnedClock()
    node = await start_node(limits=PATIENT, clock=clock)
    mq = await connect(node)
    await mq.create_queue("orders")
    link = await open_link(node)
    await link.request(RegisterClient("slow"))
    await link.request(Subscribe(1, 1, 1000))
    assert link._transport is not None
    link._transport.pause_reading()
    for _ in range(20):
        await mq.put("orders", bytes(1024 * 1024))

    def hung_up_on() -> bool:
        clock.turn(SLOW_READER_S + 1.0)
        node.sessions.hang_up_on_the_silent(clock.monotonic())
        return all(session.client_name != "slow" for session in node.sessions)

    await eventually_async(hung_up_on)
    # What it held has gone back.
    await eventually_async(lambda: node.replicas[1].numbers().unacknowledged == 0)
    await mq.ping()
    link.abort()


async def test_session_survives_when_consumer_reads_slowly(
    start_node: StartNode, connect: Connect
) -> None:
    clock = TurnedClock()
    # By what it says, the client is silent for too long: who does not read is not listened to.
    limits = msgspec.structs.replace(PATIENT, heartbeat_s=SLOW_READER_S / 2)
    node = await start_node(limits=limits, clock=clock)
    mq = await connect(node)
    await mq.create_queue("orders")
    ((host, port),) = parse_url(node.address)
    reader, writer = await asyncio.open_connection(host, port, limit=64 * 1024)
    wire = ProtocolConnection(server=False)
    writer.writelines(wire.send(RegisterClient("slow"), 1))
    await eventually_async(lambda: any(s.client_name == "slow" for s in node.sessions))
    writer.writelines(wire.send(Subscribe(1, 1, 1000), 2))
    size_bytes = 15 * 1024 * 1024
    for _ in range(2):
        await mq.put("orders", bytes(size_bytes))
    session = next(s for s in node.sessions if s.client_name == "slow")
    await eventually_async(lambda: not session.can_take(), "there is more than pipes can hold")
    got, stalled_s, unsent = 0, 0.0, unsent_bytes(session)
    while got < size_bytes:
        got += len(await reader.readexactly(64 * 1024))
        await asyncio.sleep(0)
        if unsent_bytes(session) < unsent and not session.can_take():
            # It has read something in less than the time that it has for that.
            unsent = unsent_bytes(session)
            clock.turn(SLOW_READER_S / 2)
            stalled_s += SLOW_READER_S / 2
            node.sessions.hang_up_on_the_silent(clock.monotonic())
            assert session in node.sessions
    assert stalled_s > 2 * SLOW_READER_S, "it was not slow enough to tell"
    writer.close()


def unsent_bytes(session: Session) -> int:
    assert session._transport is not None
    return session._transport.get_write_buffer_size()


@pytest.fixture
async def exposed(request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    node = Node(MemoryStore(), host="0.0.0.0")
    yield node
    if node._server is not None and not node.stopping:
        await node.stop()


async def test_a_node_that_others_can_reach_does_not_start_without_tls_and_users(
    exposed: Node,
) -> None:
    with pytest.raises(InvalidValue, match=r"0\.0\.0\.0.*tls\.certificate.*tidegate user add"):
        await exposed.start()
    await exposed.store.add_user(user("ann", admin="*"))
    with pytest.raises(InvalidValue, match=r"needs TLS: set tls\.certificate and tls\.key"):
        await exposed.start()
