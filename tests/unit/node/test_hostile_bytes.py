"""Garbage on one connection closes that one; the node, and everyone else, goes on."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct

import pytest
from backing import StartNode
from waiting import LIMIT_S

from tidegate.broker.node import Node
from tidegate.client.address import parse_url
from tidegate.client.client import Client
from tidegate.core.model import ClientMode
from tidegate.core.runtime import NodeLimits
from tidegate.protocol.catalogue import RegisterClient, RegisterClientResponse
from tidegate.protocol.connection import (
    HEADER,
    HEADER_BYTES,
    ProtocolConnection,
    ReceivedPacket,
    frame_pieces,
)
from tidegate.protocol.packet import Error, Ping


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    return await start_node(limits=NodeLimits(handshake_s=LIMIT_S))


async def hang_up_after(node: Node, stream: bytes, *, identified: bool = False) -> bytes:
    """Send bytes, and return what came back when the node has hung up."""
    ((host, port),) = parse_url(node.address)
    reader, writer = await asyncio.open_connection(host, port)
    try:
        if identified:
            register = RegisterClient(f"hostile-{random.getrandbits(60)}", ClientMode.READ_ONLY)
            writer.writelines(ProtocolConnection(server=False).send(register, 1))
            (length,) = struct.unpack("!I", await reader.readexactly(4))
            await reader.readexactly(length - 4)
        try:
            writer.write(stream)
            return await asyncio.wait_for(reader.read(), LIMIT_S)
        except ConnectionResetError:
            return b""
    finally:
        writer.close()


def code_in(answer: bytes) -> int:
    *_, event = ProtocolConnection(server=False).receive(answer)
    assert isinstance(event, ReceivedPacket)
    assert isinstance(event.packet, Error)
    return event.packet.code


NONSENSE = {
    "a length of nothing": b"\x00" * 64,
    "a length beyond everything": HEADER.pack(2**32 - 1, 1, 1, 0),
    "a length shorter than its header": HEADER.pack(HEADER_BYTES - 1, 1, 1, 0) + b"x",
    "metadata longer than its frame": HEADER.pack(HEADER_BYTES + 4, 1, 1, 2**32 - 1) + b"abcd",
    "a browser": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "a TLS client": bytes.fromhex("16030100c8010000c4030300") + b"\x00" * 100,
    "no MessagePack": b"".join(map(bytes, frame_pieces(Ping.method, 1, b"\xc1"))),
    "metadata cut off": b"".join(map(bytes, frame_pieces(RegisterClient.method, 1, b"\x93\xa5a"))),
    "an endless array": b"".join(
        map(bytes, frame_pieces(RegisterClient.method, 1, b"\xdd\xff\xff\xff\xff"))
    ),
    "deep nesting": b"".join(
        map(bytes, frame_pieces(RegisterClient.method, 1, b"\x94\xa1a\x02\xc2" + b"\x91" * 5000))
    ),
}


@pytest.mark.parametrize("stream", NONSENSE.values(), ids=NONSENSE)
@pytest.mark.parametrize("identified", [False, True], ids=["stranger", "client"])
async def test_nonsense_closes_its_connection_with_a_reason(
    stream: bytes, identified: bool, node: Node
) -> None:
    async with Client(node.address) as healthy:
        answer = await hang_up_after(node, stream, identified=identified)
        assert code_in(answer) in (32, 39)
        await healthy.ping()


async def test_a_frame_too_large_for_a_stranger_is_refused_before_it_comes(node: Node) -> None:
    large = HEADER.pack(9000, RegisterClient.method, 1, 100)
    assert code_in(await hang_up_after(node, large)) == 32


async def test_a_healthy_client_is_served_while_hundreds_send_garbage(node: Node) -> None:
    chance = random.Random(7411)
    lost = []

    async def attack(seed: int) -> None:
        stream = random.Random(seed).randbytes(chance.randrange(20, 4000))
        ((host, port),) = parse_url(node.address)
        reader, writer = await asyncio.open_connection(host, port)
        # Cut, or a frame that claims more than was sent: then we hang up ourselves.
        with contextlib.suppress(ConnectionResetError, TimeoutError):
            writer.write(stream)
            await asyncio.wait_for(reader.read(), 0.5)  # then we hang up
        writer.close()

    async with Client(node.address) as mq:
        await mq.create_queue("orders")
        attacks = [asyncio.create_task(attack(seed)) for seed in range(300)]
        for n in range(200):
            await mq.put("orders", b"%d" % n)
            lost += [n] if (await mq.get("orders")).payload != b"%d" % n else []
            held = sum(session._wire.held_bytes for session in node.sessions)
            assert held <= len(node.sessions) * (node.limits.frame_before_login_bytes + 65536)
        await asyncio.gather(*attacks)
    assert lost == []


async def test_connection_without_a_handshake_is_closed(start_node: StartNode) -> None:
    node = await start_node(limits=NodeLimits(handshake_s=0.1))
    ping = b"".join(map(bytes, frame_pieces(Ping.method, 1, b"\x90")))
    assert await hang_up_after(node, ping[:5]) == b""


async def test_a_byte_at_a_time_is_served(node: Node) -> None:
    ((host, port),) = parse_url(node.address)
    reader, writer = await asyncio.open_connection(host, port)
    for byte in b"".join(
        map(bytes, ProtocolConnection(server=False).send(RegisterClient("slow"), 1))
    ):
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0)
    (length,) = struct.unpack("!I", await asyncio.wait_for(reader.readexactly(4), LIMIT_S))
    answer = struct.pack("!I", length) + await reader.readexactly(length - 4)
    (event,) = ProtocolConnection(server=False).receive(answer)
    assert isinstance(event, ReceivedPacket)
    assert isinstance(event.packet, RegisterClientResponse)
    writer.close()


async def test_connections_beyond_the_limit_are_turned_away(start_node: StartNode) -> None:
    node = await start_node(limits=NodeLimits(connections_max=3))
    async with Client(node.address) as mq:
        await asyncio.gather(
            *(hang_up_after(node, b"\x00" * 20) for _ in range(20)), return_exceptions=True
        )
        await mq.ping()
