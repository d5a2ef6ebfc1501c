"""The loop of a node that leads, as `tidegate node` wires it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from tidegate.adapters.native.actuator import NativeActuator
from tidegate.adapters.native.sensor import NativeSensor
from tidegate.control.steering import Steering
from tidegate.core.ending import ended
from tidegate.node.server import Node


@contextlib.asynccontextmanager
async def steered(node: Node, **settings: Any) -> AsyncIterator[Steering]:
    steering = Steering(
        node.store,
        lambda: node.member_id,
        NativeSensor(node.store.members, node.neighbours.asked),
        NativeActuator(node.store, node.neighbours.ask),
        clock=node.clock,
        **settings,
    )
    running = asyncio.create_task(steering.run())
    try:
        yield steering
    finally:
        await ended([running])
