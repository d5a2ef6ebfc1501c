"""A connection that sends much at once takes turns with others, and keeps its order."""

from __future__ import annotations

import asyncio

from waiting import LIMIT_S

from tidegate.broker.node import Node
from tidegate.broker.session import PACKETS_PER_TURN, Session
from tidegate.client.address import parse_url
from tidegate.core.errors import NotAuthenticated
from tidegate.protocol.connection import ProtocolConnection, ReceivedPacket
from tidegate.protocol.packet import Ping


async def met(node: Node) -> tuple[Session, asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection, from both sides."""
    ((host, port),) = parse_url(node.address)
    before = set(node.sessions)
    reader, writer = await asyncio.open_connection(host, port)
    writer.writelines(ProtocolConnection(server=False).send(Ping(), 1))
    await reader.readexactly(15)
    (session,) = set(node.sessions) - before
    return session, reader, writer


def pings(first: int, count: int) -> bytes:
    wire = ProtocolConnection(server=False)
    return b"".join(b"".join(wire.send(Ping(), first + n)) for n in range(count))


async def test_packets_stay_in_order_over_several_turns(node: Node) -> None:
    session, reader, writer = await met(node)
    many = 3 * PACKETS_PER_TURN
    session.data_received(pings(1, many))
    # Somebody else let it be read on: an answer was taken, a request was done.
    session.data_received(pings(many + 1, 10))
    session.data_received(pings(many + 11, many))
    wire = ProtocolConnection(server=False)
    answered: list[int] = []
    async with asyncio.timeout(LIMIT_S):
        while len(answered) < 2 * many + 10:
            for event in wire.receive(await reader.read(65536)):
                assert isinstance(event, ReceivedPacket)
                answered.append(event.packet_id)
    assert answered == list(range(1, 2 * many + 11))
    writer.close()


async def test_closed_session_handles_no_further_packets(node: Node) -> None:
    session, reader, writer = await met(node)
    before = node.packets_in
    session.data_received(pings(1, 3 * PACKETS_PER_TURN))
    session.close_with_error(NotAuthenticated("this user has been removed"))
    async with asyncio.timeout(LIMIT_S):
        while await reader.read(65536):
            pass
    assert node.packets_in - before == PACKETS_PER_TURN
    writer.close()
