"""A door in a process of its own, as `tidegate door` has it.

python door_process.py ENGINE SERVER_PORT      says its address; ends with its stdin
"""

from __future__ import annotations

import asyncio
import resource
import sys
from dataclasses import replace

import uvloop

from tidegate.core.services import Backend, Door, Engine
from tidegate.doors import DOOR_LIMITS, DoorSettings
from tidegate.doors.gateway import GatewayDoor
from tidegate.doors.haproxy.door import HaproxyDoor
from tidegate_lab.papers.tapas.shops import WELL_PATH


async def serve(engine: Engine, server_port: int) -> None:
    # Slow heads and idle clients are let stand there for as long as somebody asks beside them.
    limits = replace(DOOR_LIMITS, head_timeout_s=600.0, idle_timeout_s=600.0)
    settings = DoorSettings("shop", health_path=WELL_PATH, limits=limits)
    door: Door = HaproxyDoor(settings) if engine is Engine.HAPROXY else GatewayDoor(settings)
    await door.start()
    try:
        await door.set_backends([Backend(instance_id=1, host="127.0.0.1", port=server_port)])
        print(door.address, flush=True)
        await asyncio.to_thread(sys.stdin.read)
    finally:
        await door.stop(0.0)


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(serve(Engine(sys.argv[1]), int(sys.argv[2])))
