"""Crowds at the door: idle sockets, handshakes that drip, garbage; a client inside feels little."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import resource
import sys
import time
from pathlib import Path

import pytest

from backing import StartNode, until
from people import add_user, login
from tidegate.client.address import parse_url
from tidegate.client.client import Client
from tidegate.node.limits import Limits
from tidegate.node.server import Node
from tidegate.wire import packets as w
from tidegate.wire.frames import HEADER, HEADER_BYTES

SOCKETS = 5000
# More is asked for by hand: TIDEGATE_FUZZED_FRAMES=1000000 pytest tests/access/test_crowds.py
FRAMES = int(os.environ.get("TIDEGATE_FUZZED_FRAMES", "50000"))
FRAMES_PER_CONNECTION = 500


async def p99_ms(mq: Client, seconds: float) -> float:
    """The slowest of a hundred puts and gets of a healthy client."""
    took = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begun = time.perf_counter()
        await mq.put("orders", b"x" * 256)
        await mq.get("orders")
        took.append(1e3 * (time.perf_counter() - begun))
        await asyncio.sleep(0.002)
    return sorted(took)[int(0.99 * len(took))]


@pytest.mark.slow
async def test_five_thousand_idle_sockets_and_slow_handshakes_hardly_disturb_a_client(
    start_node: StartNode,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = SOCKETS + 500
    if hard < wanted:
        pytest.skip(f"only {hard} sockets per process here, {wanted} are needed: ulimit -n")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    node = await start_node(
        limits=Limits(
            connections_max=2 * SOCKETS + 2,
            connections_per_address_max=2 * SOCKETS,
            # They are let stand there for as long as we measure.
            handshake_s=60.0,
        )
    )
    await add_user(node, "ann", admin="*")
    ((host, port),) = parse_url(node.address)
    async with Client(node.address, credentials=login("ann")) as mq:
        await mq.create_queue("orders")
        calm = min([await p99_ms(mq, 1.5) for _ in range(3)])
        # A process of its own: what it costs to be a crowd is not the client's to bear.
        crowd = await asyncio.create_subprocess_exec(
            *(sys.executable, str(Path(__file__).with_name("crowd.py"))),
            *(host, str(port), str(SOCKETS)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert crowd.stdin is not None
            assert crowd.stdout is not None
            assert await crowd.stdout.readline() == b"there\n"
            await until(lambda: node.admission.strangers == SOCKETS)
            crowded = min([await p99_ms(mq, 1.5) for _ in range(3)])
            assert node.admission.strangers == SOCKETS, "the crowd was not there"
        finally:
            with contextlib.suppress(ProcessLookupError):
                crowd.kill()
            await crowd.wait()
        print(f"p99 of a put and a get: {calm:.2f} ms calm, {crowded:.2f} ms in the crowd")
        assert crowded <= 3 * calm


def fuzzed(chance: random.Random) -> bytes:
    """Frames as a stranger may send them: valid, half valid, and not at all."""
    kind = chance.choice([*w.REQUESTS, *w.ANSWERS, chance.randrange(2**16)])
    meta = chance.choice(
        (
            b"\x90",
            b"\x91\xa1a",
            b"\x91\xb0n,,n=ann,r=abcdef",
            chance.randbytes(chance.randrange(40)),
            b"\xdd\x00\x00\x00\x05" + chance.randbytes(8),
            b"\x91" * chance.randrange(1, 60),
        )
    )
    body = chance.randbytes(chance.randrange(20))
    length = HEADER_BYTES + len(meta) + len(body)
    if chance.random() < 0.001:
        length = chance.randrange(2**32)
    return HEADER.pack(length, kind, chance.randrange(2**32), len(meta)) + meta + body


async def attack(node: Node, seed: int, frames: int) -> int:
    """Send frames until they are all sent or the node hangs up; how many were sent."""
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
    return sent


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:  # noqa: PTH123
        return int(statm.read().split()[1]) * resource.getpagesize()


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_fuzzed_frames_before_login_crash_nothing_and_fill_nothing(
    start_node: StartNode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    node = await start_node(limits=Limits(handshake_s=5.0))
    await add_user(node, "ann", admin="*")
    async with Client(node.address, credentials=login("ann")) as mq:
        await mq.create_queue("orders")
        sent = seed = 0
        while sent < FRAMES // 10:
            sent += await attack(node, seed, FRAMES_PER_CONNECTION)
            seed += 1
        warm_bytes = resident_bytes()
        while sent < FRAMES:
            sent += sum(
                await asyncio.gather(
                    *(attack(node, seed + n, FRAMES_PER_CONNECTION) for n in range(4))
                )
            )
            seed += 4
            await mq.put("orders", b"x")
            await mq.get("orders")
        grown_bytes = resident_bytes() - warm_bytes
        print(f"{sent} frames on {seed} connections; memory grew by {grown_bytes >> 20} MiB")
        assert grown_bytes < 64 * 1024 * 1024
        assert [queue.name for queue in await mq.queues()] == ["orders"]
    # What a node calls a bug, it logs as an error.
    assert caplog.records == []
