"""What 5000 strangers before a node cost a client inside: idle sockets, handshakes that drip."""

from __future__ import annotations

import asyncio
import time

from backing import StartNode
from crowded_node import crowd_before, crowded_node
from figures import Figure
from memory_fixtures import backing

from tidegate.client.client import Client

__all__ = ["backing"]


SOCKETS = 5000


async def p99_ms(mq: Client, seconds: float = 1.5) -> float:
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


async def test_puts_and_gets_before_and_in_a_crowd(start_node: StartNode, figure: Figure) -> None:
    async with crowded_node(start_node, SOCKETS) as (node, mq):
        await mq.create_queue("orders")
        calm = min([await p99_ms(mq) for _ in range(3)])
        async with crowd_before(node, SOCKETS):
            crowded = min([await p99_ms(mq) for _ in range(3)])
            assert node.admission.strangers == SOCKETS, "the crowd was not there"
    figure("put and get, p99, nobody before the node", calm, "ms", "–")
    figure("put and get, p99, 5000 strangers before the node", crowded, "ms", "–")
    figure("the same as a multiple", crowded / calm, "×", "at most 3")
