"""The loop of a node that leads, as `tidegate node` wires it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from tidegate.broker.node import Node
from tidegate.control.leader import ControlLoops
from tidegate.core.runtime import cancel_and_wait
from tidegate.engines.native.actuator import NativeActuator
from tidegate.engines.native.sensor import NativeSensor


@contextlib.asynccontextmanager
async def steered(node: Node, **settings: Any) -> AsyncIterator[ControlLoops]:
    steering = ControlLoops(
        node.store,
        node,
        NativeSensor(node.store.members, node.node_clients.request_with_body),
        NativeActuator(node.store, node.node_clients.request),
        clock=node.clock,
        **settings,
    )
    running = asyncio.create_task(steering.run())
    try:
        yield steering
    finally:
        await cancel_and_wait([running])
