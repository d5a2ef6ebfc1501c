"""Crowds at the door: idle sockets, handshakes that drip, garbage; a client inside is served."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import resource

import msgspec
import pytest
from backing import StartNode
from crowded_node import crowd_before, crowded_node
from people import add_user, login

from tidegate.broker.node import Node
from tidegate.client.address import parse_url
from tidegate.client.client import Client
from tidegate.core.runtime import NodeLimits
from tidegate.protocol.connection import ANSWERS, HEADER, HEADER_BYTES, REQUESTS

SOCKETS = 2000
# More is asked for by hand: TIDEGATE_FUZZED_FRAMES=1000000 pytest --all tests/system/access
MANY = int(os.environ.get("TIDEGATE_FUZZED_FRAMES", "200000"))
FRAMES = [20_000, pytest.param(MANY, marks=pytest.mark.only_with_all)]
FRAMES_PER_CONNECTION = 500


async def test_a_client_is_served_among_idle_sockets_and_slow_handshakes(
    start_node: StartNode,
) -> None:
    async with crowded_node(start_node, SOCKETS) as (node, mq):
        await mq.create_queue("orders")
        async with crowd_before(node, SOCKETS):
            for number in range(100):
                await mq.put("orders", str(number).encode())
                assert (await mq.get("orders")).payload == str(number).encode()
            assert node.admission.strangers == SOCKETS, "the crowd was not there"


def any_value(chance: random.Random, depth: int = 0) -> object:
    """Something that MessagePack can say."""
    kinds = 7 if depth < 3 else 5
    return (
        lambda: None,
        lambda: chance.random() < 0.5,
        lambda: chance.randrange(-(2**63), 2**64),
        lambda: chance.random(),
        lambda: chance.choice(("", "ann", "n,,n=ann,r=abcdef", "c=biws,r=x,p=AAAA", "x" * 300)),
        lambda: [any_value(chance, depth + 1) for _ in range(chance.randrange(5))],
        lambda: {str(n): any_value(chance, depth + 1) for n in range(chance.randrange(4))},
    )[chance.randrange(kinds)]()


def fuzzed(chance: random.Random) -> bytes:
    """A frame as a stranger may send it: one in five hundred is none, and ends the connection."""
    kind = chance.choice([*REQUESTS, *ANSWERS, chance.randrange(2**16)])
    meta = msgspec.msgpack.encode([any_value(chance) for _ in range(chance.randrange(5))])
    body = chance.randbytes(chance.randrange(20))
    length = HEADER_BYTES + len(meta) + len(body)
    luck = chance.random()
    if luck < 0.001:
        meta = chance.randbytes(len(meta))
    elif luck < 0.002:
        length = chance.randrange(2**32)
    return HEADER.pack(length, kind, chance.randrange(2**32), len(meta)) + meta + body


async def attack(node: Node, seed: int, frames: int) -> None:
    """Send frames until they are all sent or the node hangs up."""
    chance = random.Random(seed)
    ((host, port),) = parse_url(node.address)
    reader, writer = await asyncio.open_connection(host, port)
    sent = 0

    async def listen() -> None:
        with contextlib.suppress(OSError):
            while await reader.read(65536):
                pass

    listening = asyncio.create_task(listen())
    try:
        while sent < frames and not listening.done():
            some = [fuzzed(chance) for _ in range(min(50, frames - sent))]
            sent += len(some)
            writer.writelines(some)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()
        listening.cancel()


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:  # noqa: PTH123
        return int(statm.read().split()[1]) * resource.getpagesize()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("frames", FRAMES)
async def test_fuzzed_frames_before_login_crash_nothing_and_fill_nothing(
    start_node: StartNode, caplog: pytest.LogCaptureFixture, frames: int
) -> None:
    caplog.set_level(logging.ERROR)
    node = await start_node(limits=NodeLimits(handshake_s=5.0))
    await add_user(node, "ann", admin="*")
    async with Client(node.address, credentials=login("ann")) as mq:
        await mq.create_queue("orders")
        seed = 0
        warm_bytes = None
        # Those that the node has looked at, not those that were sent to it.
        while node.packets_in < frames:
            await asyncio.gather(*(attack(node, seed + n, FRAMES_PER_CONNECTION) for n in range(4)))
            seed += 4
            await mq.put("orders", b"x")
            await mq.get("orders")
            if warm_bytes is None and node.packets_in > frames // 10:
                warm_bytes = resident_bytes()
        assert warm_bytes is not None
        grown_bytes = resident_bytes() - warm_bytes
        print(f"{node.packets_in} frames on {seed} connections, {grown_bytes >> 20} MiB more")
        assert grown_bytes < 64 * 1024 * 1024
        assert [queue.name for queue in await mq.queues()] == ["orders"]
    # What a node calls a bug, it logs as an error.
    assert caplog.records == []
